"""Jobs that call ``optimizer.step()``, and models with unused parameters."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import dsengine
from narrowing import not_none
from training import models

SGD = {"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}}
ADAMW = {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}}


def stepped(
    config: dict[str, Any], through: str = "optimizer", zeroes: bool = True, steps: int = 4
) -> dict[str, Any]:
    """Train with ``through`` "optimizer" or "engine"; return losses, counters and the rate."""
    engine, optimizer, *_ = dsengine.initialize(model=models.tied(), config=config)
    return _stepped(engine, optimizer, through, zeroes, steps)


def deepspeed_stepped(
    config: dict[str, Any], through: str = "optimizer", zeroes: bool = True, steps: int = 4
) -> dict[str, Any]:
    """Train like ``stepped``, with the installed DeepSpeed."""
    import deepspeed

    engine, optimizer, *_ = deepspeed.initialize(model=models.tied(), config=config)
    return _stepped(engine, optimizer, through, zeroes, steps)


def _stepped(engine: Any, optimizer: Any, through: str, zeroes: bool, steps: int) -> dict[str, Any]:
    losses = []
    for step in range(steps):
        if zeroes:
            optimizer.zero_grad()
        loss = engine(models.batch(step, 0, dist.get_rank()))
        engine.backward(loss)
        (optimizer if through == "optimizer" else engine).step()
        losses.append(_mean(loss))
    counters = (engine.global_steps, engine.micro_steps, engine.global_samples)
    rate = optimizer.param_groups[0]["lr"]
    engine.destroy()
    return {"losses": losses, "counters": counters, "rate": rate}


def plain_stepped(zeroes: bool = True, steps: int = 4, **options: Any) -> list[float]:
    """Train like ``stepped`` with torch's SGD on the mean gradients of all ranks."""
    model = models.tied().to(models.device_type())
    optimizer = torch.optim.SGD(model.parameters(), **options)
    losses = []
    for step in range(steps):
        if zeroes:
            optimizer.zero_grad()
        loss = model(models.batch(step, 0, dist.get_rank()))
        before = {p: p.grad for p in model.parameters() if p.grad is not None}
        for parameter in before:
            parameter.grad = None
        loss.backward()
        for parameter in (p for p in model.parameters() if p.grad is not None):
            gradient = not_none(parameter.grad)
            dist.all_reduce(gradient)
            parameter.grad = gradient / dist.get_world_size() + before.get(parameter, 0.0)
        optimizer.step()
        losses.append(_mean(loss))
    return losses


def within_window(stage: int, boundary: bool) -> int:
    """Call ``optimizer.step()`` after the first micro batch of two; return the global steps."""
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "optimizer": SGD,
        "zero_optimization": {"stage": stage},
    }
    engine, stepped, *_ = dsengine.initialize(model=models.tied(), config=config)
    optimizer = not_none(stepped)
    if boundary:
        engine.set_gradient_accumulation_boundary(True)
    engine.backward(engine(models.batch(0, 0, dist.get_rank())))
    before = engine.module.get_parameter("scale").detach().clone()
    try:
        optimizer.step()
    finally:
        engine.destroy()
    assert not torch.equal(before, engine.module.get_parameter("scale"))
    return engine.global_steps


def with_schedule(stage: int, when: str) -> list[float]:
    """Train through an optimizer with a schedule of torch, built ``when``; return the losses."""
    model = models.tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def schedule() -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    scheduler = schedule() if when == "before" else None
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage}}
    engine, *_ = dsengine.initialize(model=model, optimizer=optimizer, config=config)
    if when == "twice":
        engine, *_ = dsengine.initialize(model=model, optimizer=optimizer, config=config)
    scheduler = scheduler or schedule()
    losses = []
    for step in range(4):
        optimizer.zero_grad()
        loss = engine(models.batch(step, 0, dist.get_rank()))
        engine.backward(loss)
        optimizer.step()
        scheduler.step()
        losses.append(_mean(loss))
    engine.destroy()
    return losses


def with_closure() -> None:
    """Call ``optimizer.step`` with a closure."""
    config = {"train_micro_batch_size_per_gpu": 4, "optimizer": SGD}
    engine, optimizer, *_ = dsengine.initialize(model=models.tied(), config=config)
    try:
        not_none(optimizer).step(lambda: 0.0)
    finally:
        engine.destroy()


def _mean(loss: Tensor) -> float:
    total = loss.detach().double().cpu()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


class Partly(nn.Module):
    """A model with a branch that forward may skip, a layer that is never used, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.branch = nn.Linear(8, 8)
        self.last = nn.Linear(8, 1)
        self.never = nn.Linear(8, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x: Tensor, use_branch: bool) -> Tensor:
        hidden = self.first(x)
        if use_branch:
            hidden = hidden + self.branch(hidden)
        return self.last(hidden).float().mean()


USED: dict[str, Callable[[int, int], bool]] = {
    "in turn": lambda step, rank: step % 2 == 0,
    "late": lambda step, rank: step >= 2,
    "on one rank": lambda step, rank: rank == step % 2,
}
"""Whether a rank uses the branch in a step."""


def weights_with_unused(
    config: dict[str, Any], used: str, steps: int = 5
) -> dict[str, list[Tensor]]:
    """Train ``Partly``; return its weights after each step."""
    model = _partly()
    engine, *_ = dsengine.initialize(model=model, config=config)
    after: dict[str, list[Tensor]] = {name: [] for name, _ in model.named_parameters()}
    dtype = next(engine.module.parameters()).dtype
    for step in range(steps):
        for _ in range(engine.gradient_accumulation_steps()):
            inputs = _inputs(step, dist.get_rank()).to(dtype)
            engine.backward(engine(inputs, USED[used](step, dist.get_rank())))
            engine.step()
        for name, parameter in engine.module.named_parameters():
            full = dsengine.utils.safe_get_full_fp32_param(parameter)
            value = parameter.detach() if full is None else full
            after[name].append(value.float().cpu().clone())
    engine.destroy()
    return after


def plain_weights_with_unused(
    optimizer: dict[str, Any], used: str, steps: int = 5
) -> dict[str, list[Tensor]]:
    """Train like ``weights_with_unused`` with plain torch and gradients of zeros."""
    model = _partly()
    kind = getattr(torch.optim, optimizer["type"])
    trained = [p for p in model.parameters() if p.requires_grad]
    stepper = kind(trained, **optimizer["params"])
    after: dict[str, list[Tensor]] = {name: [] for name, _ in model.named_parameters()}
    for step in range(steps):
        stepper.zero_grad()
        for rank in range(dist.get_world_size()):
            loss = model(_inputs(step, rank), USED[used](step, rank)) / dist.get_world_size()
            loss.backward()
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        stepper.step()
        for name, parameter in model.named_parameters():
            after[name].append(parameter.detach().cpu().clone())
    return after


def _partly() -> Partly:
    torch.manual_seed(0)
    return Partly().to(models.device_type())


def _inputs(step: int, rank: int) -> Tensor:
    inputs = 0.1 * (step + 1) + 0.1 * rank + torch.arange(32.0).view(4, 8) / 16
    return inputs.to(models.device_type())


def states_after_all_used(stage: int) -> list[str]:
    """Return names of parameters that got gradients of zeros in steps that use every one."""
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": SGD,
        "zero_optimization": {"stage": stage},
    }
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)).to(models.device_type())
    engine, *_ = dsengine.initialize(model=deepcopy(model), config=config)
    filled: list[str] = []
    monitored: Any = engine._gradients
    monitored.add_zeros = filled.extend
    for step in range(2):
        engine.backward(engine(_inputs(step, dist.get_rank())).mean())
        engine.step()
    engine.destroy()
    return filled


class Experts(nn.Module):
    """Four experts of equal size, each of which becomes a unit."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.last = nn.Linear(8, 1)

    def forward(self, x: Tensor, chosen: tuple[int, int]) -> Tensor:
        for index in chosen:
            x = x + self.experts[index](x).tanh()
        return self.last(x).square().mean()


def different_experts(config: dict[str, Any]) -> tuple[str, bool]:
    """Step with different experts on each rank; return the error and whether weights changed."""
    torch.manual_seed(0)
    engine, *_ = dsengine.initialize(model=Experts().to(models.device_type()), config=config)
    read = dsengine.utils.safe_get_full_fp32_param
    before = [not_none(read(parameter)).clone() for parameter in engine.module.parameters()]
    rank, message = dist.get_rank(), ""
    engine.backward(engine(_inputs(0, rank), (rank, rank + 1)))
    try:
        engine.step()
    except RuntimeError as error:
        message = str(error)
    after = [not_none(read(parameter)) for parameter in engine.module.parameters()]
    changed = any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    engine.destroy()
    return message, changed
