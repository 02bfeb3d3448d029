"""Coverage rules: lists of cases; the first case that applies decides."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dsconfig.features.table import Capability, Status
from dsconfig.runtimes.effective import Effective, Precision, Tier

Test = Callable[[Any, Effective], bool]
"""Takes the value of the key and the effective config."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A test and its description for the documentation."""

    description: str
    test: Test

    def __and__(self, other: "Condition") -> "Condition":
        return Condition(
            f"{self.description} and {other.description}",
            lambda value, config: self.test(value, config) and other.test(value, config),
        )


@dataclass(frozen=True, slots=True)
class Case:
    """What dsengine does with a key if a condition holds."""

    capability: Capability
    when: Condition | None = None

    @property
    def status(self) -> Status:
        return self.capability.status

    @property
    def by(self) -> str:
        """The reason with the alternative, as in a plan."""
        return self.capability.joined("; ")


Rule = tuple[Case, ...]
"""Cases in order; the last one is unconditional."""


def honoured(by: str, when: Condition | None = None) -> Rule:
    return (Case(Capability(Status.HONOURED, by), when),)


def inert(why: str, when: Condition | None = None) -> Rule:
    return (Case(Capability(Status.INERT, why), when),)


def refused(why: str | Capability, when: Condition | None = None) -> Rule:
    """Return a refused case: a feature's, or ``why; alternative``."""
    if isinstance(why, str):
        reason, _, instead = why.partition("; ")
        why = Capability(Status.REFUSED, reason, instead)
    return (Case(why, when),)


def decide(rule: Rule, value: Any, config: Effective) -> Case:
    """Return the first case that applies."""
    for case in rule:
        if case.when is None or case.when.test(value, config):
            return case
    raise LookupError("a rule must end with an unconditional case")


def stages(*wanted: int) -> Condition:
    description = "at stage " + " or ".join(map(str, wanted))
    return Condition(description, lambda value, config: config.zero.stage in wanted)


def precision(wanted: Precision) -> Condition:
    return Condition(f"in {wanted}", lambda value, config: config.numerics.precision is wanted)


OFF = Condition("if off", lambda value, config: not value)
ON = Condition("if on", lambda value, config: bool(value))
NULL = Condition("if null", lambda value, config: value is None)
FP16 = precision(Precision.FP16)
BF16 = precision(Precision.BF16)
SHARDED = stages(1, 2, 3)
OPTIMIZER_OFFLOADED = Condition(
    "with optimizer offload",
    lambda value, config: config.zero.stage > 0 and config.zero.offload_optimizer is not None,
)
OPTIMIZER_ON_NVME = Condition(
    "with optimizer offload to NVMe",
    lambda value, config: config.zero.stage > 0 and config.zero.optimizer_tier is Tier.NVME,
)
PARAMETERS_OFFLOADED = Condition(
    "with parameter offload",
    lambda value, config: config.zero.stage == 3 and config.zero.offload_param is not None,
)
PARAMETERS_ON_NVME = Condition(
    "with parameter offload to NVMe",
    lambda value, config: config.zero.stage == 3 and config.zero.parameter_tier is Tier.NVME,
)


def equals(wanted: Any) -> Condition:
    return Condition(f"if {wanted!r}", lambda value, config: value == wanted)


def off_or_refused(why: str | Capability, off: str = "off") -> Rule:
    """Return the rule of an unsupported switch: inert if off, else refused."""
    return inert(off, OFF) + refused(why)
