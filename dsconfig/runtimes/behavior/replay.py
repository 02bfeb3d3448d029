"""Another program replayed on a config: what it wrote and why, and where it stops."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dsconfig.runtimes.base import Source


@dataclass(frozen=True, slots=True)
class Failure:
    """The program stops. ``exception`` is the class, ``paths`` the dotted keys it is about."""

    exception: str
    message: str
    paths: tuple[str, ...] = ()
    late: bool = False
    """True where it happens after the file was read: while building, or at a step."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something the program does that the user surely does not want. ``code`` is DSC7xx."""

    code: str
    path: str
    message: str
    help: str


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a program wrote a value. ``block_was_absent``: it added the whole block."""

    rule: str
    source: Source
    inputs: dict[str, Any]
    block_was_absent: bool = False


@dataclass(slots=True)
class Replay:
    """``config`` is what the program goes on with, changed in place."""

    config: dict[str, Any]
    failure: Failure | None = None
    failure_after: Failure | None = None
    """How DeepSpeed stops, which is handed the config."""
    remarks: list[Remark] = field(default_factory=list[Remark])
    reasons: dict[str, Reason] = field(default_factory=dict[str, Reason])
    """Of each value written, by dotted path."""

    def remark(self, code: str, path: str, message: str, help: str) -> None:
        said = Remark(code, path, message, help)
        if said not in self.remarks:
            self.remarks.append(said)

    def record(
        self, path: str, rule: str, source: Source, *, block_was_absent: bool = False, **inputs: Any
    ) -> None:
        """Remember why a value was put there, and whose it is."""
        self.reasons[path] = Reason(rule, source, inputs, block_was_absent)


class ReplayStop(Exception):
    """Raised inside a replay where the program would raise."""

    def __init__(self, exception: str, message: str, *paths: str, late: bool = False) -> None:
        super().__init__(message)
        self.failure = Failure(exception, message, paths, late)


class MissingFact(Exception):
    """The replay cannot go on: the program would know something that nobody told us."""

    def __init__(self, path: str, message: str, remedy: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message
        self.remedy = remedy


# Errors that the same operations on the same values raise in any Python program.
BARE = (TypeError, AttributeError, LookupError, ZeroDivisionError, OverflowError)


@contextmanager
def errors_at(*paths: str, late: bool = False) -> Generator[None]:
    """Run the program's own operations on the user's values; a bare error becomes its stop."""
    try:
        yield
    except BARE as error:
        text = f"{error}"
        raise ReplayStop(type(error).__name__, text, *paths, late=late) from error


def run_replay(config: dict[str, Any], program: Callable[..., None], *given: Any) -> Replay:
    """``program(replay, *given)`` on a config, its stop included."""
    replay = Replay(config)
    try:
        program(replay, *given)
    except ReplayStop as stop:
        replay.failure = stop.failure
    return replay
