"""What a rule is, and what it finds."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from dsconfig.report import Effect, Fix, Range
from dsconfig.runtimes.base import Runtime

if TYPE_CHECKING:
    from dsconfig.checks.context import Context

Path = tuple[str, ...]
Holds = Callable[[Runtime], bool]


def everywhere(runtime: Runtime) -> bool:
    """The fault is in the file, whoever reads it."""
    return True


def in_deepspeed(runtime: Runtime) -> bool:
    """The fault shows wherever DeepSpeed has the last word."""
    return runtime.ends_in_deepspeed


def before_deepspeed(runtime: Runtime) -> bool:
    """The fault shows where a program puts values into the file and hands it on."""
    return bool(runtime.filled_with)


class Finding(NamedTuple):
    """One place where a rule does not hold. None means: as the rule says.

    ``on_key`` points at the key, not at its value.
    """

    path: Path
    message: str
    help: str | None = None
    effect: Effect | None = None
    late: bool | None = None
    holds: Holds | None = None
    fix: Fix | None = None
    on_key: bool = False
    range: Range | None = None
    """Where the place is not that of ``path``."""
    engine_stops: str | None = None
    """What is said to who asks for dsengine alone, which stops where DeepSpeed goes on."""


class Example(NamedTuple):
    """A config (its text) with the world it is judged in."""

    config: str
    name: str = "ds.json"
    runtime: str | None = "deepspeed"
    version: str | None = None
    world_size: int | None = None
    device: str | None = None
    model: str | None = None
    host_memory: str | None = None
    client_optimizer: str | None = None
    training_args: Mapping[str, Any] | None = None


Check = Callable[["Context"], Iterable[Finding]]


class Rule(NamedTuple):
    """A named, documented check. ``wakes`` lists top-level keys one of which must be present."""

    code: str
    name: str
    effect: Effect
    """What its bad example leads to, and most of its findings."""
    also: tuple[Effect, ...]
    """What a finding leads to where it says so itself."""
    check: Check
    wakes: frozenset[str]
    late: bool
    holds: Holds
    on_templates: bool
    """True where the rule looks at keys only, so that placeholders do not mislead it."""
    bad: Example
    good: Example

    @property
    def doc(self) -> str:
        return self.check.__doc__ or ""
