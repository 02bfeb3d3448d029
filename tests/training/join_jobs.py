"""Data of which the ranks do not have equally much."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import dsengine
from training import models


def own_batches(count: int, rank: int) -> Iterator[Tensor]:
    for number in range(count):
        yield models.batch(number, 0, rank)


def trained(
    config: dict[str, Any], counts: list[int], until: str = "last", direct: bool = False
) -> tuple[list[bool], list[Tensor]]:
    """Which batches this rank was given that were new, and the weights at the end."""
    engine, *_ = dsengine.initialize(model=models.tied(), config=config)
    rank = dist.get_rank()
    known: list[Tensor] = []
    is_new = []
    for batch in engine.join(own_batches(counts[rank], rank), until=until):
        is_new.append(not any(batch is each for each in known))
        known.append(batch)
        loss = engine(batch)
        if direct:
            loss.backward()
        else:
            engine.backward(loss)
        engine.step()
    assert engine.loss_weight == 1.0
    return is_new, _weights(engine)


def by_hand(
    config: dict[str, Any], counts: list[int], accumulation: int
) -> tuple[list[bool], list[Tensor]]:
    """The same in one process's arithmetic: the mean over the ranks that have a batch."""
    model = models.tied()
    optimizer = torch.optim.SGD(model.parameters(), **config["optimizer"]["params"])
    for number in range(max(counts)):
        ranks = [rank for rank, count in enumerate(counts) if number < count]
        losses = [model(models.batch(number, 0, rank)) for rank in ranks]
        (sum(losses) / len(losses) / accumulation).backward()
        if (number + 1) % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
    return [], [each.detach() for each in model.parameters()]


def refused(config: dict[str, Any]) -> list[str]:
    engine, *_ = dsengine.initialize(model=models.tied(), config=config)
    with pytest.raises(ValueError) as nothing_here:
        list(engine.join(own_batches(dist.get_rank(), 0)))
    with pytest.raises(ValueError) as unknown:
        engine.join([], until="middle")
    assert list(engine.join([])) == []
    return [str(nothing_here.value), str(unknown.value)]


def _weights(engine: Any) -> list[Tensor]:
    with dsengine.zero.GatheredParameters(list(engine.module.parameters())):
        weights = [each.detach().clone() for each in engine.module.parameters()]
    engine.destroy()
    return weights
