"""Rendezvous of the nodes before their ranks start: node 0 publishes the plan, all are compared.

[Note: one store] The rendezvous uses the store of torchrun's own rendezvous: node 0 serves it from
this process, where torchrun then finds it. It exists as long as node 0's launcher, so a node that
was lost and restarts finds the plan and joins again.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from torch.distributed import DistError, DistStoreError, TCPStore  # pyright: ignore[reportPrivateImportUsage]

PLAN, START, NODE = "dsconfig/plan", "dsconfig/start", "dsconfig/node/{}"
ACKNOWLEDGED = "dsconfig/acknowledged/{}"
ACKNOWLEDGE_SECONDS = 10
"""How long node 0, which serves the store, waits until the others have read a refusal."""


class RendezvousError(Exception):
    """The reason why these nodes cannot train together."""


class Rendezvous(NamedTuple):
    """What ``dsconfig run`` passes to the launcher of one node.

    ``plan`` and ``config`` are paths where the ranks of this node read them.
    """

    nodes: int
    rank: int
    endpoint: str
    plan: str
    config: str
    fingerprint: dict[str, Any]
    seconds: int
    """Timeout for the other nodes."""
    min_nodes: int
    """Nodes needed to continue after others are lost; ``nodes`` unless the job is elastic."""
    ranks: int | None = None
    """Ranks requested on this node (default: from the plan)."""
    gpus: int = 0
    """GPUs of this node; 0 trains on the CPU."""

    @property
    def is_elastic(self) -> bool:
        return self.min_nodes < self.nodes

    @property
    def planned_ranks(self) -> int:
        """Ranks on each node according to the plan on disk."""
        plan = json.loads(Path(self.plan).read_text("utf-8"))
        return plan["mesh"]["world_size"] // self.nodes

    @property
    def status(self) -> dict[str, Any]:
        """What this node publishes for comparison."""
        return {"fingerprint": self.fingerprint, "ranks": self.ranks, "gpus": self.gpus}


def join(spec: Rendezvous) -> TCPStore:
    """Wait for all nodes and write the plan where the ranks read it. Raises RendezvousError.

    Keep the returned store while ranks run.
    """
    host, _, port = spec.endpoint.rpartition(":")
    try:
        store = TCPStore(
            host,
            int(port),
            is_master=spec.rank == 0,
            multi_tenant=True,
            timeout=timedelta(seconds=spec.seconds),
        )
    except (DistError, OSError) as error:
        failure = "cannot serve" if spec.rank == 0 else "cannot connect to node 0 at"
        raise RendezvousError(f"node {spec.rank} {failure} {spec.endpoint}: {error}") from None
    store.set(NODE.format(spec.rank), json.dumps(spec.status))
    if spec.rank == 0:
        _publish_plan(store, spec)
    else:
        _receive_plan(store, spec)
    return store


def _publish_plan(store: TCPStore, spec: Rendezvous) -> None:
    files = {name: Path(getattr(spec, name)).read_text("utf-8") for name in ("plan", "config")}
    store.set(PLAN, json.dumps(files))
    refusal = "\n".join(_all_refusals(store, spec))
    store.set(START, refusal or "start")
    if refusal:
        joined = [rank for rank in range(1, spec.nodes) if store.check([NODE.format(rank)])]
        acknowledged = [ACKNOWLEDGED.format(rank) for rank in joined]
        with suppress(DistError):
            store.wait(acknowledged, timedelta(seconds=ACKNOWLEDGE_SECONDS))
        raise RendezvousError(refusal)


def _all_refusals(store: TCPStore, spec: Rendezvous) -> Iterator[str]:
    for rank in range(1, spec.nodes):
        try:
            status = json.loads(store.get(NODE.format(rank)))
        except DistStoreError:
            yield f"node {rank} of {spec.nodes} did not join within {spec.seconds} s"
            return
        yield from _refusals(spec, spec.fingerprint, status, rank)


def _refusals(
    spec: Rendezvous, first: dict[str, Any], status: dict[str, Any], rank: int
) -> Iterator[str]:
    """Yield the reasons why a node with this status cannot take part."""
    yield from differences(first, status["fingerprint"], rank)
    planned, requested, gpus = spec.planned_ranks, status["ranks"], status["gpus"]
    if requested not in (None, planned) and not spec.is_elastic:
        yield (
            f"node {rank} was started with --nproc-per-node {requested}, but the plan has "
            f"{planned} ranks on each node"
        )
    ranks = requested if requested and spec.is_elastic else planned
    if 0 < gpus < ranks:
        yield f"node {rank} has {gpus} GPUs, but {ranks} ranks need one each"


def _receive_plan(store: TCPStore, spec: Rendezvous) -> None:
    try:
        answer = store.get(START).decode()
    except (DistError, OSError):
        raise RendezvousError(
            f"node 0 at {spec.endpoint} did not start the job within {spec.seconds} s"
        ) from None
    if answer != "start":
        store.set(ACKNOWLEDGED.format(spec.rank), "")  # then node 0 exits, and the store with it
        raise RendezvousError(answer)
    for name, text in json.loads(store.get(PLAN)).items():
        Path(getattr(spec, name)).write_text(text, "utf-8")
    # A node that rejoins is compared here, because node 0 started long ago.
    first = json.loads(store.get(NODE.format(0)))["fingerprint"]
    if refusal := "\n".join(_refusals(spec, first, spec.status, spec.rank)):
        raise RendezvousError(refusal)


def differences(first: dict[str, Any], other: dict[str, Any], rank: int) -> Iterator[str]:
    """Yield one sentence per difference between the fingerprints of node 0 and another node."""
    for name in dict.fromkeys((*first, *other)):
        here, there = (fingerprint.get(name) or "none" for fingerprint in (first, other))
        if here != there:
            yield f"{name} differs: {here} on node 0, {there} on node {rank}"
