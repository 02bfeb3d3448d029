"""A pass that an error ends, which the script catches: often torch.OutOfMemoryError."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

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
    """Losses of windows; before the third one, a pass fails in its micro batch ``after``.

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
            _fail(engine, fails_in, after, (lambda loss: loss.backward()) if direct else None)
        losses.append(window(engine, step))
    engine.destroy()
    return losses


def _arguments() -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in ADAMW["params"].items()}


def _fail(
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
    _fail(engine, "backward", 0)
    try:
        engine.step()
    except RuntimeError as error:
        return str(error)
    finally:
        engine.destroy()
    return ""
