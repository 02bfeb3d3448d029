"""Replay of other programs: the values they write for "auto", and the facts they need."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from dsconfig.checks import refusals
from dsconfig.facts import Facts
from dsconfig.facts.model import ModelOutline
from dsconfig.facts.training import TrainingFacts
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Source
from dsconfig.runtimes.replay import MissingFact, Reason, Replay
from dsconfig.source.pointer import copied, is_block, value_at


def fill(draft: Draft) -> None:
    """Replay the runtime and record every value it changes."""
    before, document = draft.config, draft.document
    if document.json_error is not None and not draft.runtime.reads_hjson:
        return
    try:
        replay = refusals.replayed(document, copied(before), draft.facts, draft.runtime)
    except MissingFact as missing:
        _set_known(draft, _report_missing(draft, missing))
        return
    draft.config = replay.config
    default = Reason(f"set by {draft.runtime.name}", Source.DEFAULT, {})
    for path, new in changes(before, replay.config):
        why = replay.reasons.get(path, default)
        draft.note(path, new, why.source, why.rule, **why.inputs)


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
