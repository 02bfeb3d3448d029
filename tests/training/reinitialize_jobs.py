"""Jobs in which a second ``initialize`` takes over an engine's model."""

import gc
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import dsengine
from dsengine.torch_private.tensors import replaced
from training import models
from training.jobs import config, window

SGD = {"type": "SGD", "params": {"lr": 0.05}}
"""Without optimizer states, so that a new optimizer continues like the old one."""


def _config(stage: int, zero: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return config(
        stage, zero=zero, zero_allow_untested_optimizer=True, **{**more, "optimizer": SGD}
    )


def curve(
    stages: list[int], more: dict[str, Any], zero: dict[str, Any], ending: str = "kept"
) -> dict[str, list[float]]:
    """Train two windows at each stage with successive engines, and with one engine.

    ``ending``: whether each engine is "kept", "destroyed" or "dropped" before the next.
    """
    uninterrupted, *_ = dsengine.initialize(
        model=models.tied(), config=_config(stages[0], zero, more)
    )
    expected = [window(uninterrupted, step) for step in range(2 * len(stages))]
    uninterrupted.destroy()
    model, losses = models.tied(), []
    parameters = list(model.parameters()) if ending == "kept" else []
    engine: Any = None
    for index, stage in enumerate(stages):
        if ending != "kept" and engine is not None:
            engine.destroy()
        if ending == "dropped":
            del engine
            gc.collect()
        groups = [{"params": parameters}] if parameters else None
        engine, *_ = dsengine.initialize(
            model=model, model_parameters=groups, config=_config(stage, zero, more)
        )
        losses += [window(engine, step) for step in range(2 * index, 2 * index + 2)]
        parameters = parameters and list(model.parameters())
    engine.destroy()
    return {"uninterrupted": expected, "losses": losses}


def model_after_reinitialize(stage: int) -> dict[str, Any]:
    """Return the model's state after a second engine at stage 0, and the first engine's errors."""
    model = models.tied()
    classes, names = [type(m) for m in model.modules()], list(model.state_dict())
    first, *_ = dsengine.initialize(model=model, config=config(stage, bf16={"enabled": True}))
    window(first, 0)
    dsengine.initialize(model=model, config=config(0))
    refused = {}
    for name in ("forward", "step"):
        try:
            getattr(first, name)(*[models.batch(1, 0, dist.get_rank())][: name == "forward"])
        except RuntimeError as error:
            refused[name] = str(error)
    return {
        "classes": [type(m) for m in model.modules()] == classes,
        "names": list(model.state_dict()) == names,
        "dtypes": sorted({str(p.dtype) for p in model.parameters()}),
        "plain": all(type(p) is nn.Parameter for p in model.parameters()),
        "hooks": sum(
            len(value)
            for module in model.modules()
            for name, value in vars(module).items()
            if "_hooks" in name and isinstance(value, dict)
        ),
        "refused": refused,
    }


def original_parameter(stage: int) -> dict[str, Any]:
    """Whether a parameter that the script kept is the one that is trained."""
    model = models.tied()
    original = next(model.parameters())
    shape, before = original.shape, original.detach().clone()
    first, *_ = dsengine.initialize(model=model, config=config(stage))
    window(first, 0)
    optimizer = torch.optim.AdamW([original], lr=0.1)
    again, *_ = dsengine.initialize(model=model, optimizer=optimizer, config=_clients(stage))
    window(again, 1)
    with dsengine.zero.GatheredParameters([original]):
        return {"shape": original.shape == shape, "moved": not torch.equal(original.cpu(), before)}


def after_loading(stage: int, folder: str) -> dict[str, Any]:
    """Load full weights of a checkpoint into an engine's model."""
    from dsengine.utils import zero_to_fp32

    model = models.tied()
    engine, *_ = dsengine.initialize(model=model, config=config(stage))
    window(engine, 0)
    engine.save_checkpoint(folder)
    dist.barrier()
    window(engine, 1)
    loaded = zero_to_fp32.load_state_dict_from_zero_checkpoint(model, folder)
    weights = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(folder)
    return {
        "same model": loaded is model,
        "plain": all(type(p) is nn.Parameter for p in model.parameters()),
        "equal": all(torch.equal(weights[n], value) for n, value in model.state_dict().items()),
    }


def attributes_when_gathered() -> list[bool]:
    """Check a zero.Init parameter's attributes before, inside and after a gather."""
    with dsengine.zero.Init(config_dict_or_path=config(3)):
        weight: Any = nn.Linear(4, 4).weight
    number, status = weight.ds_id, dsengine.zero.ZeroParamStatus
    output = [weight.ds_status is status.NOT_AVAILABLE]
    with dsengine.zero.GatheredParameters([weight]):
        output += [weight.ds_id == number, weight.ds_status is status.AVAILABLE]
    return [*output, weight.ds_id == number, weight.ds_status is status.NOT_AVAILABLE]


def derivative(stage: int) -> list[float]:
    """Return a torch.func derivative through an engine with windows of two micro batches."""
    model = nn.Linear(3, 1)
    engine, *_ = dsengine.initialize(model=model, config=config(stage, 2))
    found = torch.func.grad(lambda x: engine(x).sum())(torch.ones(2, 3))
    return (found[0] - model.weight[0]).tolist()


class Layers(nn.Module):
    """Three layers, which scripts replace."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 6)
        self.last: nn.Module = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.last(torch.relu(self.first(x))))).square().mean()


def _trained(engine: Any, steps: int) -> list[float]:
    losses: list[float] = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        loss = engine(torch.randn(4, 6, generator=generator).to(models.device_type()))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def after_model_change(stages: list[int], change: str) -> dict[str, Any]:
    """Return losses of a model changed between two engines, and of one built that way."""
    model = Layers()
    first, *_ = dsengine.initialize(model=model, config=_config(stages[0], {}, {}))
    _trained(first, 2)
    expected = _full_copy(model)
    for target in (model, expected):
        torch.manual_seed(1)
        if change == "another head":
            target.head = nn.Linear(6, 2)
        elif change == "a layer less":
            target.last = nn.Identity()
        elif change == "a layer inside another":
            target.last = nn.Sequential(target.last, nn.ReLU())
        elif change == "another weight":
            target.head.weight = nn.Parameter(torch.ones(3, 6, device=models.device_type()))
    again, *_ = dsengine.initialize(model=model, config=_config(stages[1], {}, {}))
    losses = _trained(again, 3)
    built, *_ = dsengine.initialize(model=expected, config=_config(stages[1], {}, {}))
    return {"losses": losses, "expected": _trained(built, 3)}


def _full_copy(model: Layers) -> Layers:
    copied = Layers()
    with dsengine.zero.GatheredParameters(list(model.parameters())):
        for mine, theirs in zip(copied.parameters(), model.parameters(), strict=True):
            mine.data = theirs.detach().clone()
    return copied


def frozen_between_engines(stages: list[int]) -> list[bool]:
    """Return which parameters train after the script froze some under an engine."""
    model = Layers()
    dsengine.initialize(model=model, config=_config(stages[0], {}, {}))
    model.first.requires_grad_(False)
    dsengine.initialize(model=model, config=_config(stages[1], {}, {}))
    return [p.requires_grad for p in model.parameters()]


def gradients_after_first_destroyed(stage: int) -> list[float]:
    """Return gradient sums of the second engine before and after the first is destroyed."""
    model = Layers()
    first, *_ = dsengine.initialize(model=model, config=_config(stage, {}, {}))
    second, *_ = dsengine.initialize(model=model, config=_config(stage, {}, {}))
    second.backward(second(torch.ones(4, 6, device=models.device_type())))
    sums: list[float] = []
    for ending in (lambda: None, first.destroy, first.zero_grad):
        ending()
        sums.append(sum(g.abs().sum().item() for _, g in second._gradients.reduced()))
    return sums


def debug_getters(stage: int) -> list[bool]:
    """Whether full weights and gradients are read from the last engine while the others exist."""
    from dsengine.utils import safe_get_full_fp32_param, safe_get_full_grad

    from dsengine.loop import engine as loop

    model = Layers()
    engines: list[Any] = []
    for _ in range(2):
        engines.append(dsengine.initialize(model=model, config=_config(stage, {}, {}))[0])
        _trained(engines[-1], 1)
    engines[-1].backward(engines[-1](torch.ones(4, 6, device=models.device_type())))
    now = list(_full_copy(model).parameters())
    with replaced(loop, "active_engines", engines):  # a set, which may iterate in this order
        read = [safe_get_full_fp32_param(p) for p in model.parameters()]
        gradients = [safe_get_full_grad(p) for p in model.parameters()]
    equal = [r is not None and torch.equal(r, n) for r, n in zip(read, now, strict=True)]
    return [*equal, *(gradient is not None for gradient in gradients)]


def zero_init_parameters(stages: list[int]) -> list[bool]:
    """Whether parameters kept by the script since zero.Init are the trained ones."""
    with dsengine.zero.Init(config_dict_or_path=config(3)):
        model = Layers()
    original = list(model.parameters())
    for stage in stages:
        engine, *_ = dsengine.initialize(model=model, config=_config(stage, {}, {}))
        _trained(engine, 1)
    now = list(_full_copy(model).parameters())
    with dsengine.zero.GatheredParameters(original):
        return [torch.equal(p, now[index].to(p)) for index, p in enumerate(original)]


def load_wrong_shape(stage: int, folder: str) -> str:
    """Load weights of a model with another head into an engine's model."""
    from dsengine.utils import zero_to_fp32

    engine, *_ = dsengine.initialize(model=Layers(), config=_config(stage, {}, {}))
    engine.save_checkpoint(folder)
    dist.barrier()
    model = Layers()
    model.head = nn.Linear(6, 5)
    dsengine.initialize(model=model, config=_config(stage, {}, {}))
    try:
        zero_to_fp32.load_state_dict_from_zero_checkpoint(model, folder)
    except RuntimeError as error:
        return f"{error} {tuple(model.head.weight.shape)}"
    return "loaded"


def recomputed(stages: list[int]) -> list[int]:
    """Return how many blocks recompute under successive engines; only the first configures it."""
    model, counts = models.tied(), []
    for index, stage in enumerate(stages):
        more = {} if index else {"activation_checkpointing": {"number_checkpoints": 2}}
        engine, *_ = dsengine.initialize(model=model, config=_config(stage, {}, more))
        window(engine, index)
        counts.append(sum("forward" in vars(block) for block in model.blocks))
    return counts


def submodule_of_replica(stage: int, more: dict[str, Any]) -> str:
    """Create an engine for a submodule of a model that a stage-0 engine trains."""
    model = nn.Sequential(part := Layers())
    engine, *_ = dsengine.initialize(model=model, config=_config(0, {}, {}))
    try:
        dsengine.initialize(model=part, config=_config(stage, {}, more))
    except ValueError as error:
        engine.destroy()
        dsengine.initialize(model=part, config=_config(stage, {}, more))
        return str(error)
    engine.destroy()
    return "accepted"


def loss_scale_of_optimizer(stage: int) -> list[Any]:
    """Return an optimizer's loss scale under a fp16 engine after an fp32 one."""
    model = Layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for more in ({}, {"fp16": {"enabled": True, "initial_scale_power": 4}}):
        dsengine.initialize(model=model, optimizer=optimizer, config=_clients(stage) | more)
    result: Any = optimizer
    return [result.cur_scale, result.loss_scaler.cur_scale, result.dynamic_loss_scale]


def _clients(stage: int) -> dict[str, Any]:
    chosen = config(stage)
    del chosen["optimizer"]
    return chosen
