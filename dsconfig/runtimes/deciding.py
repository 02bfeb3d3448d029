"""What a program writes for each "auto", as far as the facts decide it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from dsconfig.facts import Facts
from dsconfig.facts.model import ModelOutline
from dsconfig.facts.training import TrainingFacts
from dsconfig.runtimes.base import Runtime
from dsconfig.runtimes.replay import MissingFact, Reason, Replay
from dsconfig.schema.markers import AUTO
from dsconfig.schema.paths import KeyPath
from dsconfig.source.pointer import contains, copied, is_block, value_at

Program = Callable[[dict[str, Any], Facts], Replay]
BY_THE_SCRIPT = ("optimizer", "scheduler")
"""Blocks that accelerate fills in from what the script passes to it."""
ANY_VALUES = (1, 1009)
"""Values for a fact that is missing: what is equal with both does not depend on it."""


class Decided(NamedTuple):
    """The values by path that a program changes, with reasons, and the missing facts."""

    values: Mapping[KeyPath, Any]
    reasons: Mapping[KeyPath, Reason]
    replay: Replay | None = None
    """None if facts are missing."""
    missing: tuple[MissingFact, ...] = ()


def decide(config: dict[str, Any], facts: Facts, program: Program) -> Decided:
    """Return what a program makes of a config; values that depend on a missing fact are left out.

    ``program`` replays it on a private copy of the config.
    """
    try:
        return _changed(config, program(copied(config), facts))
    except MissingFact as missing:
        unknown = tuple(_missing(config, facts, program, missing))
    replays: list[Replay] = []
    for value in ANY_VALUES:
        assumed = facts
        for missing in unknown:
            assumed = _with_any_value(missing.fact, assumed, value)
        try:
            replays.append(program(copied(config), assumed))
        except MissingFact:
            return Decided({}, {}, missing=unknown)
    one, other = replays
    found = _changed(config, one)
    known = {
        path: new
        for path, new in found.values.items()
        if path in one.reasons and value_at(other.config, path) == new
    }
    return Decided(known, found.reasons, missing=unknown)


def with_decided(config: object, facts: Facts, runtime: Runtime) -> object:
    """Return a config with the value that a program writes in place of each "auto".

    Unchanged if neither TrainingArguments nor an accelerate config is known: defaults are no facts.
    """
    if not (facts.arguments or facts.launch) or not is_block(config) or not contains(config, AUTO):
        return config
    filled = copied(config)
    for path, new in decide(config, facts, runtime.replay).values.items():
        if path[0] in BY_THE_SCRIPT and not runtime.compares_arguments:
            continue
        place = value_at(filled, path.parent)
        if is_block(place) and place.get(path.name) == AUTO:
            place[path.name] = new
    return filled


def _missing(
    config: dict[str, Any], facts: Facts, program: Program, missing: MissingFact
) -> Iterator[MissingFact]:
    """Yield every missing fact: to find the next one, replay with a value for the one before."""
    reported = set[str]()
    while missing.fact not in reported:
        reported.add(missing.fact)
        yield missing
        facts = _with_any_value(missing.fact, facts)
        try:
            program(copied(config), facts)
        except MissingFact as following:
            missing = following


def _with_any_value(fact: str, facts: Facts, value: int = 1) -> Facts:
    """Return the facts with some value for a missing one, an argument of ``gather``."""
    if fact == "gpus":
        return replace(facts, world_size=value)
    if fact == "model":
        outline = ModelOutline(name="", why="", hidden_size=value, config={"hidden_size": value})
        return replace(facts, model=None, outline=outline)
    field = {"micro_batch": "micro_batch_size"}.get(fact, fact)
    return replace(facts, training=replace(facts.training or TrainingFacts(), **{field: value}))


def _changed(config: dict[str, Any], replay: Replay) -> Decided:
    return Decided(dict(_changes(config, replay.config, KeyPath())), replay.reasons, replay)


def _changes(before: Any, after: dict[str, Any], above: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the path and new value of every changed or added leaf."""
    olds = before if is_block(before) else {}
    for key, new in after.items():
        path, old = above / key, olds.get(key)
        if is_block(new):
            yield from _changes(old, new, path)
        elif old != new or type(old) is not type(new):
            yield path, new
