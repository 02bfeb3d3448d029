"""Other programs: what they put in place of "auto", or how they stop."""

from typing import Any, cast

from dsconfig.report import Effect
from dsconfig.resolver.draft import Draft, auto_paths, copied
from dsconfig.resolver.resolution import Source
from dsconfig.runtimes.base import AutoFate
from dsconfig.runtimes.behaviour.outcome import Failure, MissingFact, Outcome


def fill(draft: Draft) -> None:
    """Let the runtime answer, and note every value it changed."""
    before = draft.config
    try:
        outcome = draft.runtime.fill(copied(before), draft.facts)
    except MissingFact as missing:
        draft.missing(missing.path, missing.message, missing.remedy)
        return
    draft.config = outcome.config
    if outcome.failure is not None:
        _report(draft, outcome.failure)
    _note_changes(draft, before, outcome)
    for remark in outcome.remarks:
        draft.report(
            remark.code, remark.name, Effect.ALTERED, remark.path, remark.message, remark.help
        )
    if outcome.failure is None:
        _left_over(draft)


def _report(draft: Draft, failure: Failure) -> None:
    """One finding for each key the error names."""
    program = draft.runtime.name
    for path in failure.paths or ("",):
        draft.report(
            "DSC760",
            "program-stops",
            Effect.REFUSED,
            path,
            f"{program} raises {failure.exception}: {failure.message}",
            "mend the key, or resolve the file with dsconfig resolve and train with the result",
            late=failure.late,
        )


def _note_changes(draft: Draft, before: dict[str, Any], outcome: Outcome) -> None:
    for path, old, new in changes(before, outcome.config):
        rule, inputs = outcome.reasons.get(path, (f"written by {draft.runtime.name}", {}))
        source = _source(path, inputs, old, rule)
        draft.note(path, new, source, rule, **inputs)


def _source(path: str, inputs: dict[str, Any], old: object, rule: str) -> Source:
    if "hidden_size" in rule or "hidden_size" in inputs:
        return Source.MODEL
    if "TrainingArguments" in rule or "mixed_precision" in rule or "prepare" in rule:
        return Source.TRAINING
    return Source.DERIVED if " x " in rule or "//" in rule else Source.DEFAULT


def changes(before: Any, after: Any, prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Dotted paths with old and new value, for every leaf that differs; old None: added."""
    found: list[tuple[str, Any, Any]] = []
    olds = cast(dict[str, Any], before) if isinstance(before, dict) else {}
    for key, new in cast(dict[str, Any], after).items():
        path, old = f"{prefix}{key}", olds.get(key)
        if isinstance(new, dict):
            found += changes(old, new, f"{path}.")
        elif old != new or type(old) is not type(new):
            found.append((path, old, new))
    return found


def _left_over(draft: Draft) -> None:
    """An "auto" that the program leaves in: what becomes of it next."""
    for path in auto_paths(draft.config):
        fate = draft.runtime.on_auto(tuple(path.split(".")), draft.config)
        if fate is AutoFate.NATIVE:
            continue
        draft.report(
            "DSC757",
            "auto-left-in",
            Effect.ALTERED,
            path,
            f'{draft.runtime.name} leaves "auto" at {path} ({_WORDS[fate]})',
            "write the value, or train with the output of dsconfig resolve",
        )


_WORDS = {
    AutoFate.FILLED: "it fills this key only at stage 3",
    AutoFate.DEFAULT: "DeepSpeed then drops it and uses its default",
    AutoFate.KEPT: "the text counts as true where a switch is expected",
    AutoFate.REFUSED: "DeepSpeed then stops while it reads the config",
    AutoFate.REFUSED_LATE: "DeepSpeed then stops while building or at a step",
    AutoFate.NATIVE: "a setting of its own",
}
