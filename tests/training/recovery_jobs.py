"""Jobs with a failing pass whose error the script catches, often torch.OutOfMemoryError."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import dsengine
from dsengine.torch_private.groups import all_gather_flat, issued_collectives
from training import models
from training.ahead import host_runs_ahead
from training.collective_jobs import collectives_only
from training.jobs import ADAMW, window


class _FailsInBackward(torch.autograd.Function):
    """The identity, which fails in backward if ``fails`` is set."""

    fails = False

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if _FailsInBackward.fails:
            raise torch.OutOfMemoryError("simulated out of memory")
        return gradients[0]


class FailingBlock(models.Block):
    fails = False

    def forward(self, x: Tensor) -> Tensor:
        if FailingBlock.fails:
            raise torch.OutOfMemoryError("simulated out of memory")
        return _FailsInBackward.apply(super().forward(x))


def curve(
    config: dict[str, Any], fails_in: str, *, after: int = 0, direct: bool = False, steps: int = 5
) -> list[float]:
    """Return losses of windows; before the third, a pass fails after ``after`` micro batches.

    ``fails_in``: "forward", "backward" or "" for none.
    """
    torch.manual_seed(0)
    model = models.Tied()
    model.blocks[1] = FailingBlock(models.WIDTH)
    options: dict[str, Any] = (
        {"optimizer": torch.optim.AdamW(model.parameters(), **_arguments())} if direct else {}
    )
    engine, *_ = dsengine.initialize(model=model, config=config, **options)
    losses = []
    for step in range(steps):
        if step == 2 and fails_in:
            failing_pass(
                engine, fails_in, after, (lambda loss: loss.backward()) if direct else None
            )
        losses.append(window(engine, step))
    engine.destroy()
    return losses


def curve_ahead(**arguments: Any) -> list[float]:
    """Return ``curve`` of hosts that run ahead of their collectives, with equal data."""
    with collectives_only(), host_runs_ahead():
        return curve(**arguments)


def collectives_ahead() -> tuple[dict[str, int], dict[str, int], float]:
    """Return the issued collectives as counted here and by torch, and a sum that was waited for.

    Rank 0 issues all of its collectives before the other rank issues one.
    """
    store: Any = dist.distributed_c10d._get_default_store()
    before = issued_collectives()
    with host_runs_ahead() as ahead:
        if dist.get_rank() > 0:
            store.wait(["collectives_ahead"])
        own, full = torch.ones(4), torch.ones(4 * dist.get_world_size())
        dist.all_reduce(total := torch.ones(()))
        all_gather_flat(full, own)
        dist.reduce_scatter_tensor(own, full)
        store.set("collectives_ahead", "issued")
        value = total.item()
        counted = dict(ahead.counts)
    after = issued_collectives()
    issued = {name: after[name] - before.get(name, 0) for name in after}
    return counted, {name: count for name, count in issued.items() if count}, value


def _arguments() -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in ADAMW["params"].items()}


def failing_pass(
    engine: Any, where: str, after: int, given: Callable[[Tensor], Any] | None = None
) -> None:
    backward: Callable[[Tensor], Any] = given or engine.backward
    for micro in range(after):
        backward(engine(models.batch(90, micro, dist.get_rank())))
        engine.step()
    FailingBlock.fails, _FailsInBackward.fails = where == "forward", where == "backward"
    try:
        backward(engine(models.batch(91, 0, dist.get_rank())))
    except torch.OutOfMemoryError:
        engine.zero_grad()
    else:
        raise AssertionError("no error was raised")
    finally:
        FailingBlock.fails = _FailsInBackward.fails = False


def step_after_failed_backward(config: dict[str, Any]) -> str:
    """Return step()'s error after a failed backward."""
    torch.manual_seed(0)
    model = models.Tied()
    model.blocks[1] = FailingBlock(models.WIDTH)
    engine, *_ = dsengine.initialize(model=model, config=config)
    failing_pass(engine, "backward", 0)
    return _refusal(engine)


def norms(config: dict[str, Any], way: str) -> list[float | None]:
    """Return the norms of two windows of two micro batches; ``way`` happens within the first."""
    torch.manual_seed(0)
    model = models.Tied()
    model.blocks[1] = FailingBlock(models.WIDTH)
    engine, *_ = dsengine.initialize(model=model, config=config)
    found = []
    for step in range(2):
        for micro in range(2):
            batch = models.batch(step, micro, dist.get_rank())
            if (step, micro) == (0, 1):
                _WAYS[way](engine, batch)
            loss = checkpoint(engine, batch, use_reentrant=False) if way == "again" else None
            engine.backward(engine(batch)) if loss is None else loss.backward()
            engine.step()
        found.append(engine.get_global_grad_norm())
    engine.destroy()
    return found


def failing_forward(engine: Any, batch: Tensor) -> None:
    FailingBlock.fails = True
    try:
        engine(batch)
    except torch.OutOfMemoryError:
        pass
    finally:
        FailingBlock.fails = False


def failing_evaluation(engine: Any, batch: Tensor) -> None:
    with torch.no_grad():
        failing_forward(engine, batch)


_WAYS: dict[str, Callable[[Any, Tensor], None]] = {
    "": lambda engine, batch: None,
    "again": lambda engine, batch: None,
    "forward": failing_forward,
    "evaluation": failing_evaluation,
}


def failed_recovery(config: dict[str, Any], again: bool) -> float | None:
    """Return a window's norm after a failed backward; ``again``: recovery fails once too."""
    torch.manual_seed(0)
    model = models.Tied()
    model.blocks[1] = FailingBlock(models.WIDTH)
    engine, *_ = dsengine.initialize(model=model, config=config)
    failing_pass(engine, "backward", 0)
    abort, batch = engine._gradients.abort_pass, models.batch(0, 0, dist.get_rank())

    def failing(**arguments: Any) -> None:
        engine._gradients.abort_pass = abort
        raise torch.OutOfMemoryError("once more")

    if again:
        engine._gradients.abort_pass = failing
        with suppress(torch.OutOfMemoryError):
            engine(batch)
    engine.backward(engine(batch))
    engine.step()
    found = engine.get_global_grad_norm()
    engine.destroy()
    return found


def failed_backward_of_earlier_loss(config: dict[str, Any]) -> str:
    """Return step()'s error after a failed forward and a failed backward of an earlier loss."""
    torch.manual_seed(0)
    model = models.Tied()
    model.blocks[1] = FailingBlock(models.WIDTH)
    engine, *_ = dsengine.initialize(model=model, config=config)
    batch = models.batch(0, 0, dist.get_rank())
    loss = engine(batch)
    failing_forward(engine, batch)
    _FailsInBackward.fails = True
    try:
        engine.backward(loss)
    except RuntimeError:  # out of memory; at stage 3, torch 2.11 fails on freed weights first
        pass
    finally:
        _FailsInBackward.fails = False
    return _refusal(engine)


def _refusal(engine: Any) -> str:
    """Return step()'s error, then recover with the next forward."""
    output = ""
    try:
        engine.step()
    except RuntimeError as error:
        output = str(error)
    engine(models.batch(0, 0, dist.get_rank()))
    engine.destroy()
    return output
