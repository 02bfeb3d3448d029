"""How the fate of one key is written down: cases, the first that holds decides."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dsconfig.planner.plan import Status
from dsconfig.runtimes.effective import Effective, Precision, Tier

Test = Callable[[Any, Effective], bool]
"""Takes the value the user set, and the whole effective config."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A test with the words that describe it in the documentation."""

    words: str
    test: Test

    def __and__(self, other: "Condition") -> "Condition":
        return Condition(
            f"{self.words} and {other.words}",
            lambda value, config: self.test(value, config) and other.test(value, config),
        )


@dataclass(frozen=True, slots=True)
class Case:
    status: Status
    by: str
    when: Condition | None = None


Rule = tuple[Case, ...]
"""Cases in order; the last one has no condition."""


def honoured(by: str, when: Condition | None = None) -> Rule:
    return (Case(Status.HONOURED, by, when),)


def inert(why: str, when: Condition | None = None) -> Rule:
    return (Case(Status.INERT, why, when),)


def refused(why: str, when: Condition | None = None) -> Rule:
    """``why`` ends with what to do instead."""
    return (Case(Status.REFUSED, why, when),)


def decide(rule: Rule, value: Any, config: Effective) -> Case:
    """The case that applies."""
    for case in rule:
        if case.when is None or case.when.test(value, config):
            return case
    raise LookupError("a rule must end with a case that always holds")


def stages(*wanted: int) -> Condition:
    words = "at stage " + " or ".join(map(str, wanted))
    return Condition(words, lambda value, config: config.zero.stage in wanted)


def precision(wanted: Precision) -> Condition:
    return Condition(f"in {wanted}", lambda value, config: config.numerics.precision is wanted)


OFF = Condition("when it is off", lambda value, config: not value)
ON = Condition("when it is on", lambda value, config: bool(value))
NULL = Condition("when it is null", lambda value, config: value is None)
FP16 = precision(Precision.FP16)
BF16 = precision(Precision.BF16)
SHARDED = stages(1, 2, 3)
OPTIMIZER_OFFLOADED = Condition(
    "when the optimizer is offloaded",
    lambda value, config: config.zero.stage > 0 and config.zero.offload_optimizer is not None,
)
OPTIMIZER_ON_NVME = Condition(
    "when the optimizer is on NVMe",
    lambda value, config: config.zero.stage > 0 and config.zero.optimizer_tier is Tier.NVME,
)
PARAMETERS_OFFLOADED = Condition(
    "when parameters are offloaded",
    lambda value, config: config.zero.stage == 3 and config.zero.offload_param is not None,
)
PARAMETERS_ON_NVME = Condition(
    "when parameters are on NVMe",
    lambda value, config: config.zero.stage == 3 and config.zero.parameter_tier is Tier.NVME,
)


def equals(wanted: Any) -> Condition:
    return Condition(f"when it is {wanted!r}", lambda value, config: value == wanted)


def off_or_refused(why: str, off: str = "off") -> Rule:
    """A switch the engine does not have: harmless when off; ``why`` as in :func:`refused`."""
    return inert(off, OFF) + refused(why)
