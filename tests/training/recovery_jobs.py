"""A pass that an error ends, which the script catches: often torch.OutOfMemoryError."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import dsengine
from training import models
from training.jobs import ADAMW, window


class _Fragile(torch.autograd.Function):
    """Passes on what it is given, until it is told to fail."""

    fails = False

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if _Fragile.fails:
            raise torch.OutOfMemoryError("out of memory, as far as this test goes")
        return gradients[0]


class Tired(models.Block):
    fails = False

    def forward(self, x: Tensor) -> Tensor:
        if Tired.fails:
            raise torch.OutOfMemoryError("out of memory, as far as this test goes")
        return _Fragile.apply(super().forward(x))


def curve(
    config: dict[str, Any], fails_in: str, *, after: int = 0, direct: bool = False, steps: int = 5
) -> list[float]:
    """Losses of windows; before the third one, a pass fails after ``after`` micro batches more.

    ``fails_in``: "forward", "backward" or "" for a run in which none does.
    """
    torch.manual_seed(0)
    model = models.Tied()
    model.blocks[1] = Tired(models.WIDTH)
    options = {"optimizer": torch.optim.AdamW(model.parameters(), **_arguments())} if direct else {}
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


def _arguments() -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in ADAMW["params"].items()}


def failing_pass(
    engine: Any, where: str, after: int, backward: Callable[[Tensor], Any] | None = None
) -> None:
    backward = backward or engine.backward
    for micro in range(after):
        backward(engine(models.batch(90, micro, dist.get_rank())))
        engine.step()
    Tired.fails, _Fragile.fails = where == "forward", where == "backward"
    try:
        backward(engine(models.batch(91, 0, dist.get_rank())))
    except torch.OutOfMemoryError:
        engine.zero_grad()
    else:
        raise AssertionError("nothing has failed")
    finally:
        Tired.fails = _Fragile.fails = False


def stepped_anyway(config: dict[str, Any]) -> str:
    """What step() says after a backward that has failed."""
    torch.manual_seed(0)
    model = models.Tied()
    model.blocks[1] = Tired(models.WIDTH)
    engine, *_ = dsengine.initialize(model=model, config=config)
    failing_pass(engine, "backward", 0)
    return _refusal(engine)


def norms(config: dict[str, Any], way: str) -> list[float | None]:
    """Norms of two windows of two micro batches; between those of the first, what ``way`` says."""
    torch.manual_seed(0)
    model = models.Tied()
    model.blocks[1] = Tired(models.WIDTH)
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
    Tired.fails = True
    try:
        engine(batch)
    except torch.OutOfMemoryError:
        pass
    finally:
        Tired.fails = False


def failing_evaluation(engine: Any, batch: Tensor) -> None:
    with torch.no_grad():
        failing_forward(engine, batch)


_WAYS: dict[str, Callable[[Any, Tensor], None]] = {
    "": lambda engine, batch: None,
    "again": lambda engine, batch: None,
    "forward": failing_forward,
    "evaluation": failing_evaluation,
}


def recovery_fails(config: dict[str, Any], again: bool) -> list[float | None]:
    """The norm of a window after a failed backward; ``again``: what gets over it fails once too."""
    torch.manual_seed(0)
    model = models.Tied()
    model.blocks[1] = Tired(models.WIDTH)
    engine, *_ = dsengine.initialize(model=model, config=config)
    failing_pass(engine, "backward", 0)
    forget, batch = engine.sharding.abort_pass, models.batch(0, 0, dist.get_rank())

    def failing(**arguments: Any) -> None:
        engine.sharding.abort_pass = forget
        raise torch.OutOfMemoryError("once more")

    if again:
        engine.sharding.abort_pass = failing
        with suppress(torch.OutOfMemoryError):
            engine(batch)
    engine.backward(engine(batch))
    engine.step()
    found = engine.get_global_grad_norm()
    engine.destroy()
    return found


def an_earlier_loss(config: dict[str, Any]) -> str:
    """What step() says when a forward has failed, and then the backward of an earlier one."""
    torch.manual_seed(0)
    model = models.Tied()
    model.blocks[1] = Tired(models.WIDTH)
    engine, *_ = dsengine.initialize(model=model, config=config)
    batch = models.batch(0, 0, dist.get_rank())
    loss = engine(batch)
    failing_forward(engine, batch)
    _Fragile.fails = True
    try:
        engine.backward(loss)
    except RuntimeError:  # out of memory; at stage 3, torch 2.11 meets weights that are gone first
        pass
    finally:
        _Fragile.fails = False
    return _refusal(engine)


def _refusal(engine: Any) -> str:
    """What step() says; then the next forward gets over it."""
    said = ""
    try:
        engine.step()
    except RuntimeError as error:
        said = str(error)
    engine(models.batch(0, 0, dist.get_rank()))
    engine.destroy()
    return said
