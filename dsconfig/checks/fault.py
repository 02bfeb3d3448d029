"""Rules for known bugs of releases: how they are declared and reported."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import wraps
from typing import NamedTuple

from dsconfig.batch import GLOBAL, MICRO, STEPS, Triple
from dsconfig.checks.context import Context
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import AppliesTo, Finding, reaches_deepspeed
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Effect
from dsconfig.runtimes.base import AUTO
from dsconfig.schema.paths import KeyPath
from dsconfig.schema.version import Version

with lazy_imports():
    from dsconfig.facts import training as runs

DEEPSPEED = "DeepSpeed"


class Evidence(StrEnum):
    """How the range of a bug is known."""

    EVERY = "the faulty lines are in the source of each, and of no other"
    ENDS = "read in the sources of the first and last release and their neighbors"
    RUNS = "releases on both sides of each end were run"


class FaultFinding(NamedTuple):
    """A key and the faulty behavior; ``certain`` if the config alone triggers it."""

    path: KeyPath
    behavior: str
    certain: bool = True


Fault = Callable[[Context], Iterator[FaultFinding]]


def fault(
    code: str,
    span: str,
    thread: str,
    remedy: str,
    *,
    effect: Effect = Effect.ALTERED,
    stops: str = "",
    triggers: str = "zero_optimization",
    program: str = DEEPSPEED,
    evidence: Evidence = Evidence.EVERY,
    from_source: str = "",
    applies_to: AppliesTo = reaches_deepspeed,
) -> Callable[[Fault], Fault]:
    """Register a rule for a bug of the releases in ``span`` (first and last, inclusive).

    ``stops`` is as in ``rule``, for bugs with the effect ``refused``. Bugs of a ``program`` other
    than DeepSpeed are reported if the facts include its release.
    """
    start, end = map(Version.parse, span.split(" to "))
    named = program.upper() if program == "trl" else program
    affected = f"{named} {span}" if start != end else f"runs with {named} {start}"

    def declare(find: Fault) -> Fault:
        @wraps(find)
        def check(config: Context) -> Iterator[Finding]:
            known = config.facts.releases.get(program)
            release = Version.parse(known) if known else None
            if program == DEEPSPEED:
                release = config.version
            if release is None or not start <= release <= end:
                return
            for found in find(config):
                yield Finding(
                    path=found.path,
                    message=f"{affected} {found.behavior} ({thread})",
                    help=remedy,
                    effect=None if found.certain else Effect.NOTE,
                )

        also = () if effect is Effect.NOTE else (Effect.NOTE,)
        rule(
            code,
            effect,
            triggers=triggers,
            also=also,
            stops=stops,
            applies_to=applies_to,
            from_source=from_source,
        )(check)
        EVIDENCE[code] = f"{named} {span} ({evidence})"
        if program == DEEPSPEED:
            RANGES[code] = (start, end)
        return find

    return declare


RANGES: dict[str, tuple[Version, Version]] = {}
"""First and last release with each bug, by code."""
EVIDENCE: dict[str, str] = {}
"""Releases with each bug and how they are known, by code."""


def accumulation_steps(config: Context) -> float | None:
    """Return the accumulation steps, or None if they depend on a program or on the ranks."""
    steps = config.number(STEPS)
    if steps is not None:
        return steps
    total, micro = config.number(GLOBAL), config.number(MICRO)
    if AUTO in (config.get(STEPS), config.get(GLOBAL), config.get(MICRO)):
        # The Trainer fills it in, with its default if the arguments do not set it.
        training = config.facts.training
        given = training.gradient_accumulation_steps if training is not None else None
        default = runs.DEFAULTS[STEPS] if training is not None and training.arguments else None
        return given or default
    if total is None or micro is None or not micro:
        return 1
    ranks = config.facts.data_parallel
    solved = Triple(total, micro, None).derived(ranks) if ranks else None
    return solved.accumulation if solved is not None else None


def lost_steps(
    config: Context, path: KeyPath, behavior: str, beyond: int
) -> Iterator[FaultFinding]:
    """Yield a bug that appears with more accumulation steps than ``beyond``."""
    steps = accumulation_steps(config)
    if steps is None:
        condition = f"with more than {beyond} gradient accumulation step{'s' * (beyond > 1)}"
        yield FaultFinding(path, f"{behavior}, {condition}", certain=False)
    elif steps > beyond:
        yield FaultFinding(path, behavior)
