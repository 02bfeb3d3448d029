"""Jobs with bitsandbytes' 8-bit optimizers. Each function runs on every rank."""

from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import dsengine

LARGE = 96
"""Width of layers whose states have 8 bits; their rows do not divide by two."""


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, LARGE), nn.Tanh(), nn.Linear(LARGE, 65), nn.Linear(65, 4))


def engine_of(config: dict[str, Any], kind: str, seed: int = 0) -> Any:
    built = model(seed)
    optimizer = getattr(import_module("bitsandbytes.optim"), kind)(built.parameters(), lr=3e-3)
    return dsengine.initialize(model=built, optimizer=optimizer, config=config)[0]


def train(engine: Any, steps: range) -> list[float]:
    losses = []
    for step in steps:
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        inputs = torch.randn(4, 64, generator=generator).to(next(engine.module.parameters()).dtype)
        loss = (engine(inputs) - inputs[:, :4].sin()).square().mean()
        engine.backward(loss)
        engine.step()
        mean = loss.detach().float()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def losses(config: dict[str, Any], kind: str, steps: int = 12) -> list[float]:
    engine = engine_of(config, kind)
    found = train(engine, range(steps))
    engine.destroy()
    return found


def states(config: dict[str, Any], kind: str) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return name, dtype and shape of this rank's states of each weight after a step."""
    engine = engine_of(config, kind)
    train(engine, range(1))
    found = [
        (name, str(value.dtype), tuple(value.shape))
        for state in engine.optimizer.state.values()
        for name, value in state.items()
        if isinstance(value, Tensor)
    ]
    engine.destroy()
    return found


def resumed(config: dict[str, Any], kind: str, folder: str, other: Any = None) -> list[Any]:
    """Return losses of an uninterrupted run and of one resumed with ``other``, or the error."""
    engine = engine_of(config, kind)
    train(engine, range(4))
    engine.save_checkpoint(folder)
    uninterrupted = train(engine, range(4, 8))
    engine.destroy()
    engine = engine_of(other or config, kind, seed=1)
    engine.load_checkpoint(folder)
    found = train(engine, range(4, 8))
    engine.destroy()
    return [uninterrupted, found]


def load(config: dict[str, Any], kind: str, folder: str, with_states: bool = True) -> str:
    """Load a checkpoint; return the error, "" without one."""
    engine = engine_of(config, kind, seed=1)
    try:
        engine.load_checkpoint(folder, load_optimizer_states=with_states)
        train(engine, range(4, 5))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        engine.destroy()
    return ""


def torch_states(config: dict[str, Any], folder: str) -> str:
    """Load a checkpoint with 8-bit states into torch's AdamW; return the error."""
    config = config | {"optimizer": {"type": "AdamW"}}
    engine = dsengine.initialize(model=model(), config=config)[0]
    try:
        engine.load_checkpoint(folder)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        engine.destroy()
    return ""
