"""Replay of other programs: the values they write for "auto", or the error they raise."""

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Any

from dsconfig.checks import agreement, refusals, runner
from dsconfig.facts import Facts, yaml_text
from dsconfig.facts.model import ModelOutline
from dsconfig.facts.training import TrainingFacts
from dsconfig.report import Effect
from dsconfig.resolver import codes
from dsconfig.resolver.draft import Draft, auto_paths
from dsconfig.resolver.resolution import Source
from dsconfig.runtimes.base import AutoHandling
from dsconfig.runtimes.replay import Failure, MissingFact, Reason, Replay
from dsconfig.source import strict
from dsconfig.source.pointer import copied, is_block, join, split, value_at


def fill(draft: Draft) -> None:
    """Replay the runtime and record every value it changes."""
    before = draft.config
    json_error = draft.document.json_error
    if json_error is not None and not draft.runtime.reads_hjson:
        draft.report(
            "DSC760",
            "",
            f"{draft.runtime.name} raises JSONDecodeError: {json_error.message} is not valid JSON",
            strict.convert_help(draft.document.name),
        )
        return
    for diagnostic in draft.document.diagnostics:
        found = runner.for_readers((draft.runtime,), diagnostic)
        if found.effect is Effect.REFUSED:
            path, help = ".".join(split(found.pointer)), found.help or "fix the file"
            message = f"{draft.runtime.name} raises ValueError: {found.message}"
            draft.report("DSC760", path, message, help)
            return
    draft.findings += (
        found._replace(code="DSC760", name=codes.CODES["DSC760"].name)
        for found in refusals.rejected_arguments(draft.document, draft.facts, draft.runtime)
    )
    try:
        replay = refusals.replayed(draft.document, copied(before), draft.facts, draft.runtime)
    except MissingFact as missing:
        _set_known(draft, _report_missing(draft, missing))
        again = Replay(copied(before))
        failure = agreement.failed_comparison(again, draft.facts, draft.runtime)
        if failure is not None:
            _report(draft, "DSC760", failure)
        return
    draft.config = replay.config
    if replay.failure is not None:
        _report(draft, "DSC760", replay.failure)
    default = Reason(f"set by {draft.runtime.name}", Source.DEFAULT, {})
    for path, new in changes(before, replay.config):
        why = replay.reasons.get(path, default)
        draft.note(path, new, why.source, why.rule, **why.inputs)
    for remark in replay.remarks:
        draft.report(remark.code, remark.path, remark.message, remark.help)
    if replay.failure is None:
        _left_over(draft)
    if replay.failure_after is not None:
        reported = {found.pointer for found in draft.findings}
        does = "passes this config to DeepSpeed, which "
        _report(draft, "DSC761", replay.failure_after, does, reported)


def _report_missing(draft: Draft, missing: MissingFact) -> set[str]:
    """Report and return every missing fact: to find the next one, replay with a value for the one
    before."""
    facts, reported = draft.facts, set[str]()
    while missing.fact not in reported:
        reported.add(missing.fact)
        draft.missing(missing.path, missing.message, missing.remedy)
        facts = _with_any_value(missing.fact, facts)
        try:
            refusals.replayed(draft.document, copied(draft.config), facts, draft.runtime)
        except MissingFact as following:
            missing = following
    return reported


def _set_known(draft: Draft, missing: Iterable[str]) -> None:
    """Set the values that do not depend on the missing facts: equal for two values of each."""
    replays: list[Replay] = []
    for value in (1, 1009):
        facts = draft.facts
        for fact in missing:
            facts = _with_any_value(fact, facts, value)
        try:
            replays.append(draft.runtime.replay(copied(draft.config), facts))
        except MissingFact:
            return
    one, other = replays
    for path, new in changes(draft.config, one.config):
        why = one.reasons.get(path)
        if why is not None and value_at(other.config, path) == new:
            draft.set(path, new, why.source, why.rule, **why.inputs)


def _with_any_value(fact: str, facts: Facts, value: int = 1) -> Facts:
    """Return the facts with some value for a missing one, an argument of ``gather``."""
    if fact == "gpus":
        return replace(facts, world_size=value)
    if fact == "model":
        outline = ModelOutline(name="", why="", hidden_size=value, config={"hidden_size": value})
        return replace(facts, model=None, outline=outline)
    field = {"micro_batch": "micro_batch_size"}.get(fact, fact)
    return replace(facts, training=replace(facts.training or TrainingFacts(), **{field: value}))


def _report(
    draft: Draft, code: str, failure: Failure, does: str = "", reported: Container[str] = ()
) -> None:
    """Report an error at each key it names, except pointers in ``reported``."""
    for key in failure.launch_keys:
        _report_launch_key(draft, code, failure, key)
    if failure.launch_keys:
        return
    for path, own in failure.by_path().items():
        if not path or join(*path.split(".")) not in reported:
            draft.report(
                code,
                path,
                f"{draft.runtime.name} {does}{own}",
                failure.help,
                late=failure.late,
            )


def _report_launch_key(draft: Draft, code: str, failure: Failure, key: str) -> None:
    """Report an error at a key of the accelerate config."""
    file = draft.facts.origins.get("launch")
    draft.report(
        code,
        key,
        f"{draft.runtime.name} {failure}",
        agreement.launch_help(failure, draft.document.name),
        late=failure.late,
    )
    place = yaml_text.key_range(file, key) if file else None
    draft.findings[-1] = draft.findings[-1]._replace(file=file, range=place)


def changes(before: Any, after: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return the dotted path and new value of every changed or added leaf."""
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
    """Report each "auto" that the program does not replace."""
    for path in auto_paths(draft.config):
        fate = draft.runtime.on_auto(tuple(path.split(".")), draft.config)
        if fate is AutoHandling.NATIVE:
            continue
        stops = fate in (AutoHandling.REFUSED, AutoHandling.REFUSED_LATE)
        draft.report(
            "DSC757",
            path,
            f'{draft.runtime.name} does not replace "auto" at {path} ({_CONSEQUENCES[fate]})',
            "write a value, or train with the output of `dsconfig resolve --runtime dsengine`",
            effect=Effect.REFUSED if stops else None,
            late=fate is AutoHandling.REFUSED_LATE,
        )


_CONSEQUENCES = {
    AutoHandling.FILLED: "it sets this key only at stage 3",
    AutoHandling.DEFAULT: "DeepSpeed drops it and uses the default",
    AutoHandling.KEPT: "the string is truthy, so a switch counts as on",
    AutoHandling.REFUSED: "DeepSpeed stops while reading the config",
    AutoHandling.REFUSED_LATE: "DeepSpeed stops at engine initialization or at a step",
    AutoHandling.NATIVE: "a valid setting",
}
