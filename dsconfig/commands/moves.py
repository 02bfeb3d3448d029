"""What a config means differently once DeepSpeed is moved from one release to another."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dsconfig.commands import inference
from dsconfig.report import Effect
from dsconfig.schema.catalogue import Key, find, keys
from dsconfig.schema.meaning import Meaning, Path, meaning
from dsconfig.schema.version import Version
from dsconfig.source import Document
from dsconfig.source.pointer import dotted, join


class Kind(StrEnum):
    """What a move does to an entry, as the line about it begins."""

    REFUSED = "starts to be refused"
    TRAINS = "trains differently"
    FAULT = "a known fault begins"
    UNREAD = "stops being read"
    READ = "starts being read"
    WORKS = "works differently"
    ACCEPTED = "stops being refused"
    CURED = "a known fault is cured"


@dataclass(frozen=True, slots=True)
class Move:
    """One difference; ``before`` and ``after`` are values or words, ``said`` is for people."""

    kind: Kind
    pointer: str
    before: Any
    after: Any
    said: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.said}" + (f"  ({self.why})" if self.why else "")


def moves(document: Document, before: Version, after: Version) -> list[Move]:
    """Everything that the move changes for a config, the gravest first."""
    one, other = meaning(document.value, before), meaning(document.value, after)
    found = [*_no_longer_read(one, other), *_newly_read(one, other), *new_defaults(one, other)]
    told = {move.pointer for move in found}
    found += _verdicts(document, before, after, told)
    return sorted(found, key=lambda move: list(Kind).index(move.kind))


def _no_longer_read(one: Meaning, other: Meaning) -> Iterator[Move]:
    for path in other.unread:
        key = find(path)
        if path in one.unread or key is None:
            continue
        refused = key.refused_from is not None and key.refused_from <= other.version
        kind, word = (Kind.REFUSED, "refused") if refused else (Kind.UNREAD, "not read")
        why = f"last read by {key.until}" if key.until else f"first read by {key.since}"
        yield Move(kind, join(*path), "read", word, dotted(join(*path)), why)


def _newly_read(one: Meaning, other: Meaning) -> Iterator[Move]:
    for path in one.unread:
        key = find(path)
        if path not in other.unread and key is not None:
            pointer, why = join(*path), f"read since {key.since}"
            yield Move(Kind.READ, pointer, "not read", "read", dotted(pointer), why)


def new_defaults(one: Meaning, other: Meaning) -> Iterator[Move]:
    """The keys whose absence means something else."""
    for key in keys():
        path = tuple(key.path.split("."))
        if not key.earlier_defaults or path in other.settings or not _in_use(path, other):
            continue
        was, now = in_force(path, one), in_force(path, other)
        if was == now or not (key.read_at(one.version) and key.read_at(other.version)):
            continue
        pointer, words = join(*path), TRAINED_WITH.get(path)
        kind = Kind.TRAINS if words else Kind.WORKS
        said = words(was, now) if words else f"{dotted(pointer)} is {_word(now)}, not {_word(was)}"
        why = _when(key, one.version, other.version)
        yield Move(kind, pointer, was, now, said, f"{key.path}: {why}" if words else why)


PEAK = ("scheduler", "params", "warmup_max_lr")


def in_force(path: Path, meant: Meaning) -> Any:
    """The value at a path; the optimizer's rate where a schedule without a peak takes that."""
    value = meant.value(path)
    if value is None and path == PEAK:
        return meant.value(("optimizer", "params", "lr"))
    return value


def _peak(was: Any, now: Any) -> str:
    shown = ["the optimizer's lr" if rate is None else _word(rate) for rate in (now, was)]
    return f"lr peaks at {shown[0]}, not {shown[1]}"


def _clipping(was: Any, now: Any) -> str:
    shown = [f"clipped at norm {_word(norm)}" if norm else "not clipped" for norm in (now, was)]
    return f"gradients are {shown[0]}; they were {shown[1]}"


def _loss_scale(was: Any, now: Any) -> str:
    return f"the loss scale starts at 2^{now}, not 2^{was}"


def _overflow(was: Any, now: Any) -> str:
    shown = ["skipped" if checked else "taken" for checked in (now, was)]
    return f"a step whose gradients are inf or nan is {shown[0]}, not {shown[1]}"


TRAINED_WITH: Mapping[Path, Callable[[Any, Any], str]] = {
    PEAK: _peak,
    ("gradient_clipping",): _clipping,
    ("fp16", "initial_scale_power"): _loss_scale,
    ("bf16", "check_grad_overflow"): _overflow,
}
"""The defaults whose change alters the numbers of a run, and how that is said."""


def _word(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "unset"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _in_use(path: Path, config: Meaning) -> bool:
    """Whether the block around a key is there and not switched off."""
    block = path[:-1]
    if not block:
        return True
    if not config.has_block(block):
        return False
    switch = find((*block, "enabled"))
    return switch is None or config.value((*block, "enabled")) is not False


def _when(key: Key, before: Version, after: Version) -> str:
    low, high = sorted((before, after))
    releases = [str(changed) for changed, _ in key.earlier_defaults if low < changed <= high]
    return f"the default changed in {' and '.join(releases)}; the file does not set it"


def _verdicts(
    document: Document, before: Version, after: Version, told: set[str]
) -> Iterator[Move]:
    """What one of the releases refuses, alters or is known to do wrong, and the other is not.

    For the program that the file is of: the Trainer fills an "auto" at which DeepSpeed stops.
    """
    from dsconfig import validate
    from dsconfig.checks.known_faults import RANGES

    program = inference.program(None, str(after), document=document, source=document.name).runtime

    def findings(version: Version) -> dict[tuple[str, str], Any]:
        report = validate(document, runtime=program.name, version=version)
        kept = (each for each in report.diagnostics if each.code in RANGES or each in report.errors)
        return {(found.code, found.pointer): found for found in kept}

    one, other = findings(before), findings(after)
    for place in (each for each in one if each not in other):
        found, said = one[place], f"{place[0]} {one[place].message}"
        if found.code in RANGES:
            yield Move(Kind.CURED, found.pointer, "known fault", "cured", said)
        elif found.effect is Effect.REFUSED and found.pointer not in told:
            yield Move(Kind.ACCEPTED, found.pointer, "refused", "accepted", said)
    for place in (each for each in other if each not in one):
        found, said = other[place], f"{place[0]} {other[place].message}"
        if found.code in RANGES:
            yield Move(Kind.FAULT, found.pointer, "right", "known fault", said)
        elif found.pointer not in told:
            kind = Kind.REFUSED if found.effect is Effect.REFUSED else Kind.TRAINS
            yield Move(kind, found.pointer, "accepted", str(found.effect), said)
