"""Nodes meet before their ranks start: node 0 hands over the plan, and all compare what they have.

[Note: one store] The meeting uses the store that torchrun's rendezvous is going to use: node 0
serves it from this process, in which torchrun then finds it. It lives as long as node 0's launcher,
so a node that was lost and comes back finds the plan and joins again.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from torch.distributed import DistError, DistStoreError, TCPStore  # pyright: ignore[reportPrivateImportUsage]

PLAN, START, NODE = "dsconfig/plan", "dsconfig/start", "dsconfig/node/{}"
HEARD = "dsconfig/heard/{}"
SECONDS_TO_HEAR = 10
"""How long node 0, in which the store lives, stays for the others to hear why nothing starts."""


class MeetingError(Exception):
    """Why these nodes cannot train together, in words."""


class Meeting(NamedTuple):
    """What ``dsconfig run`` hands to the launcher of one node; paths where ranks find the plan."""

    nodes: int
    rank: int
    endpoint: str
    plan: str
    config: str
    fingerprint: dict[str, Any]
    seconds: int
    """How long to wait for the others."""
    least: int
    """Nodes with which training goes on when others are lost; ``nodes`` where all are needed."""
    ranks: int | None = None
    """What this node was told to start; None leaves it to the plan."""
    cards: int = 0
    """What this node has; 0 trains on the processor."""

    @property
    def is_elastic(self) -> bool:
        return self.least < self.nodes

    @property
    def planned_ranks(self) -> int:
        """On each node, by the plan in hand."""
        plan = json.loads(Path(self.plan).read_text("utf-8"))
        return plan["mesh"]["world_size"] // self.nodes

    @property
    def word(self) -> dict[str, Any]:
        """What this node says of itself."""
        return {"fingerprint": self.fingerprint, "ranks": self.ranks, "cards": self.cards}


def meet(meeting: Meeting) -> TCPStore:
    """Wait for all nodes; the plan then lies where ranks look for it. Raises MeetingError.

    The store has to be kept while ranks run.
    """
    host, _, port = meeting.endpoint.rpartition(":")
    try:
        store = TCPStore(
            host,
            int(port),
            is_master=meeting.rank == 0,
            multi_tenant=True,
            timeout=timedelta(seconds=meeting.seconds),
        )
    except (DistError, OSError) as error:
        where = "cannot serve" if meeting.rank == 0 else "found no node 0 at"
        raise MeetingError(f"node {meeting.rank} {where} {meeting.endpoint}: {error}") from None
    store.set(NODE.format(meeting.rank), json.dumps(meeting.word))
    if meeting.rank == 0:
        _hand_over(store, meeting)
    else:
        _take(store, meeting)
    return store


def _hand_over(store: TCPStore, meeting: Meeting) -> None:
    files = {name: Path(getattr(meeting, name)).read_text("utf-8") for name in ("plan", "config")}
    store.set(PLAN, json.dumps(files))
    refused = "\n".join(_refusals(store, meeting))
    store.set(START, refused or "start")
    if refused:
        came = [rank for rank in range(1, meeting.nodes) if store.check([NODE.format(rank)])]
        with suppress(DistError):
            store.wait([HEARD.format(rank) for rank in came], timedelta(seconds=SECONDS_TO_HEAR))
        raise MeetingError(refused)


def _refusals(store: TCPStore, meeting: Meeting) -> Iterator[str]:
    for rank in range(1, meeting.nodes):
        try:
            other = json.loads(store.get(NODE.format(rank)))
        except DistStoreError:
            yield f"node {rank} of {meeting.nodes} did not come within {meeting.seconds} s"
            return
        yield from _refused(meeting, meeting.fingerprint, other, rank)


def _refused(
    meeting: Meeting, first: dict[str, Any], word: dict[str, Any], rank: int
) -> Iterator[str]:
    """Why a node cannot take part, by what it has said."""
    yield from differences(first, word["fingerprint"], rank)
    planned, asked, cards = meeting.planned_ranks, word["ranks"], word["cards"]
    if asked not in (None, planned) and not meeting.is_elastic:
        yield f"node {rank} was told --gpus {asked}, and the plan has {planned} ranks on each node"
    ranks = asked if asked and meeting.is_elastic else planned
    if 0 < cards < ranks:
        yield f"node {rank} shows {cards} cards, and {ranks} ranks need one each"


def _take(store: TCPStore, meeting: Meeting) -> None:
    try:
        said = store.get(START).decode()
    except (DistError, OSError):
        raise MeetingError(
            f"node 0 at {meeting.endpoint} did not say to start within {meeting.seconds} s"
        ) from None
    if said != "start":
        store.set(HEARD.format(meeting.rank), "")  # then node 0 ends, and the store with it
        raise MeetingError(said)
    for name, text in json.loads(store.get(PLAN)).items():
        Path(getattr(meeting, name)).write_text(text, "utf-8")
    # A node that comes back is compared here: node 0 has long begun.
    first = json.loads(store.get(NODE.format(0)))["fingerprint"]
    if refused := "\n".join(_refused(meeting, first, meeting.word, meeting.rank)):
        raise MeetingError(refused)


def differences(first: dict[str, Any], other: dict[str, Any], rank: int) -> Iterator[str]:
    """What node 0 and another have not in common, one sentence each."""
    for name in dict.fromkeys((*first, *other)):
        here, there = (held.get(name) or "none" for held in (first, other))
        if here != there:
            yield f"{name} differs: {here} on node 0, {there} on node {rank}"
