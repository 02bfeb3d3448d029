"""DeepSpeed's hostfile: which hosts there are, with how many slots, and which of them are meant.

One line a host, ``worker-0 slots=8``; ``#`` begins a comment. Filters are
``NAME[:SLOT[,SLOT]...][@NAME...]``, as ``deepspeed --include`` and ``--exclude`` take them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dsconfig.lazy_imports import lazy_imports

with lazy_imports():
    import socket

_LINE = re.compile(r"([^\s-]\S*)\s+slots=(\d{1,4})(?=\s|#|$)")
"""A name that began with a hyphen would be an option to ssh."""
Slots = Mapping[str, Sequence[int]]
"""Of each host, in the order of ranks."""


class Hosts(NamedTuple):
    """The nodes of a job, in the order of their ranks."""

    slots: Slots
    are_chosen: bool
    """Whether a filter names slots: then a node trains on these devices only."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.slots)

    @property
    def ranks(self) -> int:
        """On each node. Raises ValueError where they differ: a plan divides ranks evenly."""
        counts = {name: len(slots) for name, slots in self.slots.items()}
        fewest = min(counts.values())
        for name, count in counts.items():
            if count != fewest:
                keep = ",".join(map(str, self.slots[name][:fewest]))
                raise ValueError(
                    f"{name} has {count} slots, others have {fewest}, and a plan needs as many on "
                    f"every node: name {fewest} of them, --include ...@{name}:{keep}"
                )
        return fewest

    def devices(self, rank: int) -> str | None:
        """What ``CUDA_VISIBLE_DEVICES`` has to be on a node; None where all are meant."""
        slots = self.slots[self.names[rank]]
        return ",".join(map(str, slots)) if self.are_chosen else None

    def own_rank(self) -> int | None:
        """That of the host this runs on, by its name; None where it is not among them."""
        own = {socket.gethostname(), socket.getfqdn(), socket.gethostname().partition(".")[0]}
        return next((rank for rank, name in enumerate(self.names) if address(name) in own), None)


def address(name: str) -> str:
    """Under which a host is reached: ssh takes ``user@host`` too."""
    return name.rpartition("@")[2]


def hosts(path: Path, include: str | None = None, exclude: str | None = None) -> Hosts:
    """The hosts of a file that the filters leave. Raises ValueError."""
    found = chosen(read(path), include, exclude)
    if not found:
        raise ValueError(f"{path}: no slot is left to train on")
    return Hosts(found, ":" in (include or exclude or ""))


def chosen(found: Slots, include: str | None, exclude: str | None) -> dict[str, tuple[int, ...]]:
    """Of all slots those that one of the filters leaves, hosts without any left out.

    Raises ValueError for both filters at once, and for hosts and slots that are not there.
    """
    if include and exclude:
        raise ValueError("--include and --exclude: one of them")
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
    """All slots of every host. Raises ValueError, with the line that is wrong."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise ValueError(f"--hostfile {path}: {error}") from None
    return parsed(lines, str(path))


def parsed(lines: Iterable[str], name: str = "hostfile") -> dict[str, tuple[int, ...]]:
    """All slots of every host of a file's lines. Raises ValueError with the line that is wrong."""
    found: dict[str, tuple[int, ...]] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            raise ValueError(f"{name}:{number}: {line!r} is not of the form HOST slots=N")
        if match[1] in found:
            raise ValueError(f"{name}:{number}: {match[1]} stands there twice")
        found[match[1]] = tuple(range(int(match[2])))
    return found


def _filter(flag: str, text: str, found: Slots) -> Slots:
    """The slots that a filter means of each host: all where it names none."""
    named: dict[str, set[int]] = {}
    for part in text.split("@"):
        name, colon, listed = part.partition(":")
        if name not in found:
            raise ValueError(f"{flag}: {name!r} is not in the hostfile ({', '.join(found)})")
        slots = listed.split(",") if colon else []
        known = {f"{slot}" for slot in found[name]}
        wrong = [each for each in slots if each not in known]
        if wrong:
            raise ValueError(f"{flag}: {name} has {len(found[name])} slots and no {wrong[0]!r}")
        named.setdefault(name, set()).update(map(int, slots))
    return {name: sorted(slots) or found[name] for name, slots in named.items()}
