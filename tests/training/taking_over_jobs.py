"""Jobs in which a second ``initialize`` takes over the model of an engine."""

import gc
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import dsengine
from dsengine.torch_private import replaced
from training import models
from training.jobs import config, window

SGD = {"type": "SGD", "params": {"lr": 0.05}}
"""Without states, so that a new optimizer goes on as the old one would have."""


def _config(stage: int, zero: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return config(stage, zero=zero, zero_allow_untested_optimizer=True, **more | {"optimizer": SGD})


def curve(
    stages: list[int], more: dict[str, Any], zero: dict[str, Any], ending: str = "kept"
) -> dict[str, list[float]]:
    """Train two windows at each stage, with one engine after the other and, beside it, with one.

    ``ending``: what becomes of each engine before the next: "kept", "destroyed" or "dropped".
    """
    uninterrupted, *_ = dsengine.initialize(
        model=models.tied(), config=_config(stages[0], zero, more)
    )
    whole = [window(uninterrupted, step) for step in range(2 * len(stages))]
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
        asked = [{"params": parameters}] if parameters else None
        engine, *_ = dsengine.initialize(
            model=model, model_parameters=asked, config=_config(stage, zero, more)
        )
        losses += [window(engine, step) for step in range(2 * index, 2 * index + 2)]
        parameters = parameters and list(model.parameters())
    engine.destroy()
    return {"whole": whole, "losses": losses}


def what_is_left(stage: int) -> dict[str, Any]:
    """How the model is after a second engine at stage 0, and what the first one says."""
    model = models.tied()
    classes, names = [type(each) for each in model.modules()], list(model.state_dict())
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
        "classes": [type(each) for each in model.modules()] == classes,
        "names": list(model.state_dict()) == names,
        "dtypes": sorted({str(each.dtype) for each in model.parameters()}),
        "plain": all(type(each) is nn.Parameter for each in model.parameters()),
        "hooks": sum(
            len(value)
            for each in model.modules()
            for name, value in vars(each).items()
            if "_hooks" in name and isinstance(value, dict)
        ),
        "refused": refused,
    }


def an_object_from_before(stage: int) -> dict[str, Any]:
    """Whether a parameter that the script has held all the time is the one that is trained."""
    model = models.tied()
    held = next(model.parameters())
    shape, before = held.shape, held.detach().clone()
    first, *_ = dsengine.initialize(model=model, config=config(stage))
    window(first, 0)
    optimizer = torch.optim.AdamW([held], lr=0.1)
    again, *_ = dsengine.initialize(model=model, optimizer=optimizer, config=_clients(stage))
    window(again, 1)
    with dsengine.zero.GatheredParameters([held]):
        return {"shape": held.shape == shape, "moved": not torch.equal(held.cpu(), before)}


def after_loading(stage: int, folder: str) -> dict[str, Any]:
    """A model that gets whole weights of a checkpoint while an engine has it."""
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
        "plain": all(type(each) is nn.Parameter for each in model.parameters()),
        "equal": all(torch.equal(weights[n], value) for n, value in model.state_dict().items()),
    }


def told_inside() -> list[bool]:
    """What a parameter of zero.Init says of itself before, inside and after a gather."""
    with dsengine.zero.Init(config_dict_or_path=config(3)):
        weight: Any = nn.Linear(4, 4).weight
    number, status = weight.ds_id, dsengine.zero.ZeroParamStatus
    said = [weight.ds_status is status.NOT_AVAILABLE]
    with dsengine.zero.GatheredParameters([weight]):
        said += [weight.ds_id == number, weight.ds_status is status.AVAILABLE]
    return [*said, weight.ds_id == number, weight.ds_status is status.NOT_AVAILABLE]


def derivative(stage: int) -> list[float]:
    """By torch.func through an engine whose windows have two micro batches."""
    model = nn.Linear(3, 1)
    engine, *_ = dsengine.initialize(model=model, config=config(stage, 2))
    found = torch.func.grad(lambda x: engine(x).sum())(torch.ones(2, 3))
    return (found[0] - model.weight[0]).tolist()


class Layers(nn.Module):
    """Three layers; the first and the last can change places with others."""

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
        loss = engine(torch.randn(4, 6, generator=generator).to(models.place()))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def after_surgery(stages: list[int], change: str) -> dict[str, Any]:
    """A model of which the script has changed a part between two engines, beside one built so."""
    model = Layers()
    first, *_ = dsengine.initialize(model=model, config=_config(stages[0], {}, {}))
    _trained(first, 2)
    expected = _whole_copy(model)
    for each in (model, expected):
        torch.manual_seed(1)
        if change == "another head":
            each.head = nn.Linear(6, 2)
        elif change == "a layer less":
            each.last = nn.Identity()
        elif change == "a layer inside another":
            each.last = nn.Sequential(each.last, nn.ReLU())
        elif change == "another weight":
            each.head.weight = nn.Parameter(torch.ones(3, 6, device=models.place()))
    again, *_ = dsengine.initialize(model=model, config=_config(stages[1], {}, {}))
    losses = _trained(again, 3)
    built, *_ = dsengine.initialize(model=expected, config=_config(stages[1], {}, {}))
    return {"losses": losses, "expected": _trained(built, 3)}


def _whole_copy(model: Layers) -> Layers:
    copied = Layers()
    with dsengine.zero.GatheredParameters(list(model.parameters())):
        for mine, theirs in zip(copied.parameters(), model.parameters(), strict=True):
            mine.data = theirs.detach().clone()
    return copied


def frozen_in_between(stages: list[int]) -> list[bool]:
    """Which parameters train, of a model that the script has frozen in part under an engine."""
    model = Layers()
    dsengine.initialize(model=model, config=_config(stages[0], {}, {}))
    model.first.requires_grad_(False)
    dsengine.initialize(model=model, config=_config(stages[1], {}, {}))
    return [each.requires_grad for each in model.parameters()]


def the_first_is_destroyed_late(stage: int) -> list[float]:
    """The sum over gradients of the second engine, before and after the first is destroyed."""
    model = Layers()
    first, *_ = dsengine.initialize(model=model, config=_config(stage, {}, {}))
    second, *_ = dsengine.initialize(model=model, config=_config(stage, {}, {}))
    second.backward(second(torch.ones(4, 6, device=models.place())))
    sums: list[float] = []
    for ending in (lambda: None, first.destroy, first.zero_grad):
        ending()
        sums.append(sum(g.abs().sum().item() for _, g in second.sharding.gradients()))
    return sums


def what_debugging_reads(stage: int) -> list[bool]:
    """Whether weights and gradients read whole are those of the last engine; the others live."""
    from dsengine.utils import safe_get_full_fp32_param, safe_get_full_grad

    from dsengine.loop import engine as loop

    model = Layers()
    engines: list[Any] = []
    for _ in range(2):
        engines.append(dsengine.initialize(model=model, config=_config(stage, {}, {}))[0])
        _trained(engines[-1], 1)
    engines[-1].backward(engines[-1](torch.ones(4, 6, device=models.place())))
    now = list(_whole_copy(model).parameters())
    with replaced(loop, "active_engines", engines):  # a set, whose order may be this one
        read = [safe_get_full_fp32_param(each) for each in model.parameters()]
        gradients = [safe_get_full_grad(each) for each in model.parameters()]
    equal = [r is not None and torch.equal(r, n) for r, n in zip(read, now, strict=True)]
    return [*equal, *(each is not None for each in gradients)]


def an_object_of_zero_init(stages: list[int]) -> list[bool]:
    """Whether parameters that the script has held since zero.Init are those that are trained."""
    with dsengine.zero.Init(config_dict_or_path=config(3)):
        model = Layers()
    held = list(model.parameters())
    for stage in stages:
        engine, *_ = dsengine.initialize(model=model, config=_config(stage, {}, {}))
        _trained(engine, 1)
    now = list(_whole_copy(model).parameters())
    with dsengine.zero.GatheredParameters(held):
        return [torch.equal(each, now[index].to(each)) for index, each in enumerate(held)]


def loading_what_does_not_fit(stage: int, folder: str) -> str:
    """Weights of a model with another head, into one that an engine has."""
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
    """How many blocks recompute under engines of which only the first is told to."""
    model, counts = models.tied(), []
    for index, stage in enumerate(stages):
        more = {} if index else {"activation_checkpointing": {"number_checkpoints": 2}}
        engine, *_ = dsengine.initialize(model=model, config=_config(stage, {}, more))
        window(engine, index)
        counts.append(sum("forward" in vars(block) for block in model.blocks))
    return counts


def a_part_of_replicas(stage: int, more: dict[str, Any]) -> str:
    """An engine for a part of a model that another one has at stage 0, and goes on training."""
    whole = nn.Sequential(part := Layers())
    engine, *_ = dsengine.initialize(model=whole, config=_config(0, {}, {}))
    try:
        dsengine.initialize(model=part, config=_config(stage, {}, more))
    except ValueError as error:
        engine.destroy()
        dsengine.initialize(model=part, config=_config(stage, {}, more))
        return str(error)
    engine.destroy()
    return "accepted"


def told_scale(stage: int) -> list[Any]:
    """What an optimizer says of the scale under an engine with one, after one without."""
    model = Layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for more in ({}, {"fp16": {"enabled": True, "initial_scale_power": 4}}):
        dsengine.initialize(model=model, optimizer=optimizer, config=_clients(stage) | more)
    told: Any = optimizer
    return [told.cur_scale, told.loss_scaler.cur_scale, told.dynamic_loss_scale]


def _clients(stage: int) -> dict[str, Any]:
    chosen = config(stage)
    del chosen["optimizer"]
    return chosen
