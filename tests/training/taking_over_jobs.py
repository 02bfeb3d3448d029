"""Jobs in which a second ``initialize`` takes over the model of an engine."""

import gc
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import dsengine
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


def _clients(stage: int) -> dict[str, Any]:
    chosen = config(stage)
    del chosen["optimizer"]
    return chosen
