"""The signature of a failure: how a log shows it, its cause and its remedy."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache

from dsconfig.schema.version import Version


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
    ``pattern`` are available in ``cause`` as ``{name}``; the group ``rank`` is the failing rank.
    """

    name: str
    phrases: tuple[str, ...]
    pattern: str = ""
    near: tuple[str, ...] = ()
    """Patterns that the line, or one of the lines of its message, matches."""
    frame: str = ""
    """Pattern of the innermost frame of the traceback before the line."""
    clues: tuple[str, ...] = ()
    """Names of clues (see ``clues``) that occur anywhere in the logs."""
    phase: str | None = None
    """Phase of the innermost known frame of the traceback before the line."""
    role: Role = Role.ERROR
    releases: Mapping[str, str] = field(default_factory=dict[str, str])
    """Affected releases by program, as ``>=0.16.0,<0.17.0``; empty text: all."""
    cause: str
    remedy: str
    remedies: Mapping[str, str] = field(default_factory=dict[str, str])
    """Remedies in the words of one program, instead of ``remedy``."""
    at_stage: Mapping[int, str] = field(default_factory=dict[int, str])
    """Remedies for a run at a ZeRO stage, instead of ``remedy``."""
    items: str = ""
    """Pattern of the items that the message lists; ``cause`` and ``remedy`` contain its named
    groups as ``{name}``, those of several items joined by semicolons."""
    threads: tuple[str, ...] = ()
    """Public threads, as paths below https://github.com."""

    @property
    def urls(self) -> list[str]:
        """Return the addresses of the threads."""
        return [f"https://github.com/{path}" for path in self.threads]

    def affects(self, installed: Mapping[str, str]) -> bool:
        """Return whether the releases of a log are affected; an unknown release is."""
        return all(
            _contains(text, installed[program])
            for program, text in self.releases.items()
            if program in installed
        )


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
