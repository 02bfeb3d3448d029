"""DeepSpeed's hostfile: hosts, their slots, and the include and exclude filters.

One host per line, ``worker-0 slots=8``; ``#`` starts a comment. Filters have the form
``NAME[:SLOT[,SLOT]...][@NAME...]``, as in ``deepspeed --include`` and ``--exclude``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dsconfig import os_errors
from dsconfig.lazy_imports import lazy_imports

with lazy_imports():
    import socket

_LINE = re.compile(r"([^\s-]\S*)\s+slots=(\d{1,4})(?=\s|#|$)")
"""ssh would read a name with a leading hyphen as an option."""
Slots = Mapping[str, Sequence[int]]
"""Slots by host, in rank order."""


class Hosts(NamedTuple):
    """The nodes of a job, in rank order."""

    slots: Slots
    are_filtered: bool
    """Whether a filter names slots; a node then trains on these devices only."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.slots)

    @property
    def ranks(self) -> int:
        """Return the ranks per node. Raises ValueError if they differ between nodes."""
        counts = {name: len(slots) for name, slots in self.slots.items()}
        fewest = min(counts.values())
        for name, count in counts.items():
            if count != fewest:
                keep = ",".join(map(str, self.slots[name][:fewest]))
                raise ValueError(
                    f"{name} has {count} slots, but others have {fewest}; a plan needs the same "
                    f"number on every node: select {fewest} with --include ...@{name}:{keep}"
                )
        return fewest

    def devices(self, rank: int) -> str | None:
        """Return ``CUDA_VISIBLE_DEVICES`` for a node, or None for all devices."""
        slots = self.slots[self.names[rank]]
        return ",".join(map(str, slots)) if self.are_filtered else None

    def own_rank(self) -> int | None:
        """Return the rank of this host, or None if it is not listed."""
        own = {socket.gethostname(), socket.getfqdn(), socket.gethostname().partition(".")[0]}
        return next((rank for rank, name in enumerate(self.names) if address(name) in own), None)


def address(name: str) -> str:
    """Return the host name without the user of ``user@host``."""
    return name.rpartition("@")[2]


def hosts(path: Path, include: str | None = None, exclude: str | None = None) -> Hosts:
    """Return the hosts of a file that pass the filters. Raises ValueError."""
    found = select(read(path), include, exclude)
    if not found:
        raise ValueError(f"{path}: the filters leave no slots")
    return Hosts(found, ":" in (include or exclude or ""))


def select(found: Slots, include: str | None, exclude: str | None) -> dict[str, tuple[int, ...]]:
    """Return the slots that pass the filter, without hosts that have none left.

    Raises ValueError if both filters are given, or for unknown hosts and slots.
    """
    if include and exclude:
        raise ValueError("--include and --exclude are mutually exclusive")
    if include:
        named = _filter("--include", include, found)
        found = {name: named[name] for name in found if name in named}
    elif exclude:
        named = _filter("--exclude", exclude, found)
        found = {
            name: [slot for slot in slots if slot not in named.get(name, ())]
            for name, slots in found.items()
        }
    return {name: tuple(slots) for name, slots in found.items() if slots}


def read(path: Path) -> dict[str, tuple[int, ...]]:
    """Return all slots of every host. Raises ValueError with the line number."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise ValueError(f"--hostfile: {path}: {os_errors.reason(error)}") from None
    except ValueError as error:
        raise ValueError(f"--hostfile: {path}: {error}") from None
    return parse(lines, str(path))


def parse(lines: Iterable[str], name: str = "hostfile") -> dict[str, tuple[int, ...]]:
    """Parse the lines of a hostfile. Raises ValueError with the line number."""
    found: dict[str, tuple[int, ...]] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            raise ValueError(f"{name}:{number}: {line!r} is not of the form HOST slots=N")
        if match[1] in found:
            raise ValueError(f"{name}:{number}: duplicate host {match[1]}")
        found[match[1]] = tuple(range(int(match[2])))
    return found


def _filter(flag: str, text: str, found: Slots) -> Slots:
    """Return the slots that a filter selects on each host; all if it names none."""
    named: dict[str, set[int]] = {}
    for part in text.split("@"):
        name, colon, listed = part.partition(":")
        if name not in found:
            raise ValueError(f"{flag}: {name!r} is not in the hostfile ({', '.join(found)})")
        slots = listed.split(",") if colon else []
        known = {f"{slot}" for slot in found[name]}
        wrong = [each for each in slots if each not in known]
        if wrong:
            raise ValueError(f"{flag}: {name} has {len(found[name])} slots, but not {wrong[0]!r}")
        named.setdefault(name, set()).update(map(int, slots))
    return {name: sorted(slots) or found[name] for name, slots in named.items()}
