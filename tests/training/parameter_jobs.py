"""Jobs for what DeepSpeed attaches to parameters at stage 3."""

import copy
from typing import Any

import torch
import torch.distributed as dist

import dsengine as deepspeed
from training import models
from training.live_jobs import real_deepspeed

PLAIN = ("ds_tensor", "partition_numel", "ds_summary")


def _described(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Return the attributes of each parameter, and all ranks' shards of it put together."""
    found: list[dict[str, Any]] = []
    for name, parameter in model.named_parameters():
        p: Any = parameter
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, p.ds_tensor.float())
        found.append(
            {
                "name": name,
                "numel": p.ds_numel,
                "counts": [len(part) for part in parts],
                "own": p.partition_numel() == p.ds_tensor.numel(),
                "full": torch.cat(parts),
                "dtype": p.ds_tensor.dtype is p.dtype,
                "type": p.ds_param_type.name,
                "place": (p.ds_zero_partition_rank, p.ds_zero_partition_world_size),
                "sizes": p.aligned_size() - p.padding_size() - p.ds_numel,
                "summary": p.ds_summary(),
            }
        )
    return found


def _is_complete(described: list[dict[str, Any]], full: dict[str, torch.Tensor]) -> bool:
    """Whether shards make up the full weights; every rank has one that is not sharded."""
    for each in described:
        weight = full[each["name"]].float().flatten()
        whole = weight.numel() * (each["counts"] == [weight.numel()] * dist.get_world_size())
        expected = torch.cat([weight] * dist.get_world_size()) if whole else weight
        if not torch.equal(each["full"], expected):
            return False
    return True


def attached(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes under zero.Init, in an engine, and while gathered."""
    with deepspeed.zero.Init(config_dict_or_path=settings):
        model = models.tied()
    built = _described(model)
    engine, *_ = deepspeed.initialize(model=model, config=settings)
    engine.backward(engine(models.batch(0, 0, dist.get_rank())))
    engine.step()
    parameters = list(engine.module.parameters())
    sharded = _described(engine.module)
    with deepspeed.zero.GatheredParameters(parameters):
        full = {n: p.detach().clone() for n, p in engine.module.named_parameters()}
        gathered = _described(engine.module)
    first: Any = parameters[0]
    refused = None
    try:
        first.partition_gradients()
    except AttributeError as error:
        refused = str(error)
    result = {
        "complete": [_is_complete(each, full) for each in (sharded, gathered)],
        "built": all(sum(each["counts"]) == each["numel"] for each in built if each["numel"] > 1),
        "facts": {
            (each["own"], each["dtype"], each["type"], each["place"], each["sizes"])
            for each in (*built, *sharded, *gathered)
        },
        "summary": sharded[0]["summary"],
        "refused": refused,
        "copies": not any(name in vars(copy.deepcopy(first)) for name in PLAIN),
    }
    engine.destroy()
    return result


def gathered_by_hand(settings: dict[str, Any]) -> list[dict[str, bool]]:
    """Gather, write and partition each parameter, under zero.Init and in an engine."""
    with deepspeed.zero.Init(config_dict_or_path=settings):
        model = models.tied()
    found = [_written(model)]
    engine, *_ = deepspeed.initialize(model=model, config=settings)
    found.append(_written(engine.module))
    engine(models.batch(0, 0, dist.get_rank()))
    engine.destroy()
    return found


def _written(model: torch.nn.Module) -> dict[str, bool]:
    parameters: list[Any] = list(model.parameters())
    first, rank = parameters[0], dist.get_rank()
    first.all_gather(parameters)
    before = [parameter.detach().clone() for parameter in parameters]
    shapes = [parameter.shape == parameter.ds_shape for parameter in parameters]
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(rank + 1)
    first.partition(parameters)
    discarded = _full(parameters)
    for parameter in parameters:
        parameter.all_gather()
        with torch.no_grad():
            parameter.add_(rank + 1)
        parameter.partition(has_been_updated=True)
    parameters[0].partition()  # not gathered: no effect
    kept = _full(parameters)
    return {
        "shapes": all(shapes),
        "discarded": all(torch.equal(a, b) for a, b in zip(before, discarded, strict=True)),
        "kept": all(torch.equal(a + 1, b) for a, b in zip(before, kept, strict=True)),
    }


def _full(parameters: list[Any]) -> list[torch.Tensor]:
    with deepspeed.zero.GatheredParameters(parameters):
        return [parameter.detach().clone() for parameter in parameters]


def names_of_real_parameters(settings: dict[str, Any]) -> set[str]:
    """Return what the installed DeepSpeed attaches to a parameter."""
    real = real_deepspeed()
    adam = settings["optimizer"] | {"params": {"lr": 1e-3, "torch_adam": True}}
    before = set(dir(torch.nn.Parameter(torch.zeros(2))))
    model = models.tied()
    engine, *_ = real.initialize(
        model=model,
        model_parameters=model.parameters(),
        config=settings | {"optimizer": adam, "zero_allow_untested_optimizer": True},
    )
    names = set(dir(next(iter(engine.module.parameters())))) - before
    return {name for name in names if not name.startswith("_")}
