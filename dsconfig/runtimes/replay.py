"""The result of replaying a program on a config: values with reasons, and failures."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from dsconfig.facts.naming import named
from dsconfig.schema.paths import ROOT, KeyPath


class Source(StrEnum):
    """Origin of the value that replaces "auto"."""

    CONFIG = "config"
    TRAINING = "training"
    MODEL = "model"
    HARDWARE = "hardware"
    MEMORY = "memory"
    DERIVED = "derived"
    DEFAULT = "default"


class Failure(NamedTuple):
    """An error of the program: exception class (empty: unknown), message and keys."""

    exception: str
    message: str
    paths: tuple[KeyPath, ...] = ()
    late: bool = False
    """True if raised after parsing: during initialization or in a step."""
    launch_keys: tuple[str, ...] = ()
    """Dotted keys of the accelerate config that cause it."""
    help: str = "write a value that the program accepts"
    parts: tuple[str, ...] = ()
    """The part of the message about each of ``paths``, if the program lists several errors."""

    def __str__(self) -> str:
        """Return what the program does, as in ``raises ValueError: lr is negative``."""
        does = f"raises {self.exception}" if self.exception else "stops"
        return f"{does}: {self.message}"

    def by_path(self) -> dict[KeyPath, "Failure"]:
        """Return the failure of each key, or of the root, with its part of the message."""
        messages = self.parts or (self.message,) * len(self.paths)
        if not self.paths:
            return {ROOT: self}
        return {
            path: self._replace(message=message, paths=(path,), parts=())
            for path, message in zip(self.paths, messages, strict=True)
        }


class Remark(NamedTuple):
    """Behavior that surprises users but raises no error. ``code`` is DSC7xx."""

    code: str
    path: KeyPath
    message: str
    help: str


class Reason(NamedTuple):
    """Why a program set a value. ``block_was_absent``: it added the block."""

    rule: str
    source: Source
    inputs: dict[str, Any]
    block_was_absent: bool = False


@dataclass(slots=True)
class Replay:
    """``config`` is what the program continues with, changed in place."""

    config: dict[str, Any]
    failure: Failure | None = None
    failure_after: Failure | None = None
    """Error of DeepSpeed, to which the config is passed on."""
    remarks: list[Remark] = field(default_factory=list[Remark])
    reasons: dict[KeyPath, Reason] = field(default_factory=dict[KeyPath, Reason])
    """Reason for each value set, by path."""

    def remark(self, code: str, path: KeyPath, message: str, help: str) -> None:
        remark = Remark(code, path, message, help)
        if remark not in self.remarks:
            self.remarks.append(remark)

    def record(
        self, at: KeyPath, rule: str, by: Source, *, block_was_absent: bool = False, **inputs: Any
    ) -> None:
        """Record the reason for a value and its source."""
        self.reasons[at] = Reason(rule, by, inputs, block_was_absent)


class ReplayStop(Exception):
    """Raised in a replay where the program would raise."""

    def __init__(
        self,
        exception: str,
        message: str,
        *paths: KeyPath,
        late: bool = False,
        launch_keys: tuple[str, ...] = (),
        help: str = "",
        parts: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.failure = Failure(exception, message, paths, late, launch_keys, parts=parts)
        if help:
            self.failure = self.failure._replace(help=help)


class MissingFact(Exception):
    """The replay needs a value that no fact provides.

    ``fact`` is the argument of ``gather`` that would provide it.
    """

    def __init__(self, path: KeyPath, message: str, remedy: str, *, fact: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message
        self.remedy = remedy
        self.fact = fact


def unknown_ranks() -> MissingFact:
    """Return the error of a replay without the number of processes."""
    return MissingFact(
        ROOT, "the number of processes is unknown", f"specify {named('gpus')}", fact="gpus"
    )


# Errors that Python operations on values of the wrong type raise.
PLAIN_ERRORS = (TypeError, AttributeError, LookupError, ZeroDivisionError, OverflowError)


@contextmanager
def errors_at(*paths: KeyPath, late: bool = False) -> Generator[None]:
    """Turn plain Python errors of the replayed operations into a ReplayStop for the given keys."""
    try:
        yield
    except PLAIN_ERRORS as error:
        text = f"{error}"
        raise ReplayStop(type(error).__name__, text, *paths, late=late) from error


def run_replay(config: dict[str, Any], program: Callable[..., None], *given: Any) -> Replay:
    """Run ``program(replay, *given)`` on a config and record where it stops."""
    replay = Replay(config)
    try:
        program(replay, *given)
    except ReplayStop as stop:
        replay.failure = stop.failure
    return replay
