"""Runs with collectives instead of gloo's direct exchange."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import dsengine
from dsconfig import tiles
from dsengine.observation.communication import CommunicationLog
from dsengine.torch_private.groups import COLLECTIVES, collective_of
from training import jobs, models

CAN_EXCHANGE = "dsengine.sharding.fully_sharded.can_exchange"
CAN_COALESCE = "dsengine.sharding.unsharded_units.can_coalesce"
EXCHANGES = (
    "dsengine.communication.exchange.start_gather",
    "dsengine.sharding.unsharded_units.start_gather",
    "dsengine.communication.exchange.Reductions.start",
)


def _refused(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("direct exchange was used")


@contextmanager
def collectives_only() -> Iterator[None]:
    """Disable direct exchange, coalesce gathers, for engines built inside."""
    with ExitStack() as stack:
        stack.enter_context(patch(CAN_EXCHANGE, lambda *_: False))
        stack.enter_context(patch(CAN_COALESCE, lambda *_: True))
        for name in EXCHANGES:
            stack.enter_context(patch(name, _refused))
        yield


def both_ways(config: dict[str, Any], steps: int = 4) -> tuple[list[float], list[float]]:
    """Return the losses with direct exchange and with collectives."""
    exchanged = jobs.losses(config, steps)
    with collectives_only():
        return exchanged, jobs.losses(config, steps)


def counted_gathers(
    config: dict[str, Any], *, coalesce: bool, packed_below: int
) -> tuple[int, dict[Any, int]]:
    """Return how many gathers the second step issues, and its ``comms_logger`` counts."""
    issued: list[str] = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if (name := collective_of(func)) is not None:
                issued.append(COLLECTIVES.get(name, name))
            return func(*args, **(kwargs or {}))

    log = CommunicationLog({"prof_all": True, "prof_ops": [], "verbose": False})
    with (
        collectives_only(),
        patch(CAN_COALESCE, lambda *_: coalesce),
        patch.object(tiles, "PACKED_BELOW", packed_below),
    ):
        engine, *_ = dsengine.initialize(model=models.tied(), config=config)
        jobs.window(engine, 0)
        with Seen(), log:
            jobs.window(engine, 1)
        engine.destroy()
    return issued.count("all_gather_into_tensor"), dict(log.counts)


def waits_with_offload(config: dict[str, Any]) -> tuple[int, int]:
    """Return how often two training steps and one evaluation wait for the device."""
    waits: list[Any] = []
    with patch("dsengine.sharding.fully_sharded.wait_for_stream", waits.append):
        engine, *_ = dsengine.initialize(model=models.tied(), config=config)
        for step in range(2):
            jobs.window(engine, step)
        trained = len(waits)
        with torch.no_grad():
            engine(models.batch(0, 0, dist.get_rank()))
        engine.destroy()
    return trained, len(waits) - trained


def groups_made(config: dict[str, Any], blocks: int) -> int:
    """Return the number of process groups that an engine creates."""
    before = len(dist.distributed_c10d._world.pg_map)
    engine, *_ = dsengine.initialize(model=models.tied(blocks=blocks), config=config)
    made = len(dist.distributed_c10d._world.pg_map) - before
    engine.destroy()
    return made
