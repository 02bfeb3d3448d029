"""Signatures of failures: how a log shows each, its cause and its remedy.

The records are data: one file per family in ``signatures/``, whose fields are those of
``Signature``. They are read when the first log is.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from dsconfig.schema.version import Version

FOLDER = Path(__file__).with_name("signatures")
FAMILIES = (
    "memory",
    "launching",
    "parameters",
    "precision",
    "accelerators",
    "configs",
    "builds",
    "checkpoints",
    "communication",
    "launchers",
)
"""Files of records. A more specific signature precedes a general one."""


class Role(StrEnum):
    """What a match means for the run, most informative first."""

    ERROR = "error"
    """The error of one rank, which ends its process."""
    KILLED = "killed"
    """A signal ended the process; it printed nothing itself."""
    TIMEOUT = "timeout"
    """A rank waited in vain for the others."""
    SILENT = "silent"
    """The run continues, but trains something else."""
    STUCK = "stuck"
    """The log ends here although the run has not finished."""
    CONSEQUENCE = "consequence"
    """Other ranks or the launcher stop because a rank failed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Signature:
    """One known failure.

    A line matches if it contains one of ``phrases`` and matches ``pattern``. Named groups of
    ``pattern`` are available in ``cause`` and ``remedy`` as ``{name}``; the group ``rank`` is the
    failing rank.
    """

    name: str
    phrases: tuple[str, ...]
    pattern: str = ""
    near: tuple[str, ...] = ()
    """Patterns that the line, or one of the lines of its message, matches."""
    before: str = ""
    """Pattern of the lines of this rank before the line."""
    frame: str = ""
    """Pattern of the innermost frame, as ``FILE in FUNCTION: SOURCE LINE``."""
    frames: str = ""
    """Pattern of any frame of the traceback."""
    figure: str = ""
    """Name of the conclusion that the figures of the message allow (see ``explanation``)."""
    clues: tuple[str, ...] = ()
    """Names of clues that occur anywhere in the logs."""
    phase: str | None = None
    """Phase of the innermost known frame of the traceback."""
    role: Role = Role.ERROR
    releases: Mapping[str, str] = field(default_factory=dict[str, str])
    """Affected releases by program, as ``>=0.16.0,<0.17.0``; empty text: all."""
    cause: str
    remedy: str
    remedies: Mapping[str, str] = field(default_factory=dict[str, str])
    """Remedies for the users of one program, instead of ``remedy``."""
    at_stage: Mapping[str, str] = field(default_factory=dict[str, str])
    """Remedies for a run at a ZeRO stage, instead of ``remedy``."""
    items: str = ""
    """Pattern of the items that the message lists; ``cause`` and ``remedy`` contain its named
    groups as ``{name}``, those of several items joined by semicolons."""
    threads: tuple[str, ...] = ()
    """Public threads, as paths below https://github.com."""
    source: str = "thread"
    """How it was verified: ``package FILE`` (the file that raises it), ``live`` or ``thread``."""

    @property
    def urls(self) -> list[str]:
        """Return the addresses of the threads."""
        return [f"https://github.com/{path}" for path in self.threads]

    @property
    def is_located(self) -> bool:
        """Return whether a place or figures distinguish it from others with the same text."""
        return bool(self.frame or self.frames or self.figure or self.phase or self.near)

    def affects(self, installed: Mapping[str, str]) -> bool:
        """Return whether the releases of a log are affected; an unknown release is."""
        return all(
            _contains(text, installed[program])
            for program, text in self.releases.items()
            if program in installed
        )


@cache
def signatures() -> tuple[Signature, ...]:
    """Return all signatures, by family."""
    return tuple(
        _signature(record)
        for family in FAMILIES
        for record in _read(FOLDER / f"{family}.toml")["signature"]
    )


def _signature(record: dict[str, Any]) -> Signature:
    """Return the signature of a record; raises TypeError for an unknown field."""
    fields: dict[str, Any] = {
        **record,
        **{name: tuple(record.get(name, ())) for name in ("phrases", "near", "clues", "threads")},
        "role": Role(record.get("role", Role.ERROR)),
    }
    return Signature(**fields)


@cache
def order() -> Mapping[str, int]:
    """Return the place of each signature, by name."""
    return {signature.name: place for place, signature in enumerate(signatures())}


@cache
def clues() -> Mapping[str, tuple[str, ...]]:
    """Return the phrases of each clue to the setup of a run."""
    return {name: tuple(phrases) for name, phrases in _programs()["clues"].items()}


@cache
def programs() -> Mapping[str, tuple[str, ...]]:
    """Return the phrases of each program, the outermost program first."""
    return {name: tuple(each["phrases"]) for name, each in _programs()["programs"].items()}


def remedies_of(program: str | None) -> tuple[str, ...]:
    """Return the keys of ``Signature.remedies`` for a program, the most specific first."""
    return tuple(_programs()["programs"].get(program, {}).get("remedies", ()))


@cache
def _programs() -> dict[str, Any]:
    return _read(Path(__file__).with_name("programs.toml"))


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text("utf-8"))


def _contains(requirement: str, release: str) -> bool:
    """Return whether a release meets a requirement such as ``>=0.16.0,<0.17.0``."""
    try:
        version = Version.parse(release)
    except ValueError:
        return True
    for part in filter(None, requirement.split(",")):
        bound = Version.parse(part.lstrip("<>="))
        if part.startswith(">=") and version < bound:
            return False
        if part.startswith("<") and version >= bound:
            return False
    return True


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern of a signature, compiled once."""
    return re.compile(pattern)
