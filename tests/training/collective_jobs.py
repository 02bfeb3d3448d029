"""Runs with collectives instead of gloo's direct exchange."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

import torch
import torch.distributed as dist

import dsengine
from training import jobs, models

CAN_EXCHANGE = "dsengine.sharding.fully_sharded.can_exchange"
EXCHANGES = (
    "dsengine.sharding.fully_sharded.start_gather",
    "dsengine.communication.exchange.Reductions.start",
)


def _refused(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("direct exchange was used")


@contextmanager
def collectives_only() -> Iterator[None]:
    """Disable direct exchange for engines built inside."""
    with ExitStack() as stack:
        stack.enter_context(patch(CAN_EXCHANGE, lambda *_: False))
        for name in EXCHANGES:
            stack.enter_context(patch(name, _refused))
        yield


def both_ways(config: dict[str, Any], steps: int = 4) -> tuple[list[float], list[float]]:
    """Return the losses with direct exchange and with collectives."""
    exchanged = jobs.losses(config, steps)
    with collectives_only():
        return exchanged, jobs.losses(config, steps)


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
