"""Other programs: what they put in place of "auto", or how they stop."""

from collections.abc import Container
from typing import Any

from dsconfig.report import Effect
from dsconfig.resolver.draft import Draft, auto_paths
from dsconfig.resolver.resolution import Source
from dsconfig.runtimes.base import AutoHandling
from dsconfig.runtimes.behavior.replay import Failure, MissingFact, Reason
from dsconfig.source.pointer import copied, is_block, join


def fill(draft: Draft) -> None:
    """Let the runtime answer, and note every value it changed."""
    before = draft.config
    json_error = draft.document.json_error
    if json_error is not None and not draft.runtime.reads_hjson:
        told = Failure("JSONDecodeError", f"{json_error.message} is not valid JSON")
        _report(draft, "DSC760", told, "raises")
        return
    try:
        replay = draft.runtime.fill(copied(before), draft.facts)
    except MissingFact as missing:
        draft.missing(missing.path, missing.message, missing.remedy)
        return
    draft.config = replay.config
    if replay.failure is not None:
        _report(draft, "DSC760", replay.failure, "raises")
    unsaid = Reason(f"written by {draft.runtime.name}", Source.DEFAULT, {})
    for path, new in changes(before, replay.config):
        why = replay.reasons.get(path, unsaid)
        draft.note(path, new, why.source, why.rule, **why.inputs)
    for remark in replay.remarks:
        draft.report(remark.code, remark.path, remark.message, remark.help)
    if replay.failure is None:
        _left_over(draft)
    if replay.failure_after is not None:
        said = "hands this to DeepSpeed, which raises"
        told = {found.pointer for found in draft.findings}
        _report(draft, "DSC761", replay.failure_after, said, told)


def _report(
    draft: Draft, code: str, failure: Failure, does: str, told: Container[str] = ()
) -> None:
    """One finding for each key the error names, but where something is ``told`` already."""
    for path in failure.paths or ("",):
        if not path or join(*path.split(".")) not in told:
            draft.report(
                code,
                path,
                f"{draft.runtime.name} {does} {failure.exception}: {failure.message}",
                "mend the key, or resolve the file with dsconfig resolve and train with the result",
                late=failure.late,
            )


def changes(before: Any, after: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted path and new value of every leaf that differs or was added."""
    found: list[tuple[str, Any]] = []
    olds = before if is_block(before) else {}
    for key, new in after.items():
        path, old = f"{prefix}{key}", olds.get(key)
        if is_block(new):
            found += changes(old, new, f"{path}.")
        elif old != new or type(old) is not type(new):
            found.append((path, new))
    return found


def _left_over(draft: Draft) -> None:
    """An "auto" that the program leaves in: what becomes of it next."""
    for path in auto_paths(draft.config):
        fate = draft.runtime.on_auto(tuple(path.split(".")), draft.config)
        if fate is AutoHandling.NATIVE:
            continue
        stops = fate in (AutoHandling.REFUSED, AutoHandling.REFUSED_LATE)
        draft.report(
            "DSC757",
            path,
            f'{draft.runtime.name} leaves "auto" at {path} ({_WORDS[fate]})',
            "write the value, or train with the output of dsconfig resolve",
            effect=Effect.REFUSED if stops else None,
            late=fate is AutoHandling.REFUSED_LATE,
        )


_WORDS = {
    AutoHandling.FILLED: "it fills this key only at stage 3",
    AutoHandling.DEFAULT: "DeepSpeed then drops it and uses its default",
    AutoHandling.KEPT: "the text counts as true where a switch is expected",
    AutoHandling.REFUSED: "DeepSpeed then stops while it reads the config",
    AutoHandling.REFUSED_LATE: "DeepSpeed then stops while building or at a step",
    AutoHandling.NATIVE: "a setting of its own",
}
