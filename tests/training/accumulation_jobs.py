"""Gradient accumulation by the engine and by plain PyTorch."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import dsengine
from narrowing import not_none
from training import models
from training.engine_api_jobs import Double
from training.jobs import config

MICRO_BATCHES = 8
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def norm(stage: int, summed_in: str, sent_in: str, branches: bool = False) -> float:
    """Return the gradient norm of one window of a bf16 model."""
    settings = config(
        stage,
        MICRO_BATCHES,
        bf16={"enabled": True},
        gradient_clipping=0.0,
        data_types={"grad_accum_dtype": summed_in},
        communication_data_type=sent_in,
    )
    model, loss_of = _model(branches)
    engine, *_ = dsengine.initialize(model=model, config=settings)
    for micro in range(MICRO_BATCHES):
        engine.backward(loss_of(engine, micro, dist.get_rank()))
        engine.step()
    result = not_none(engine.get_global_grad_norm())
    engine.destroy()
    return result


def norm_of_script_defined_window(stage: int, summed_in: str) -> float:
    """Return ``norm`` for a window set by the script; the config has one micro batch per window."""
    settings = config(
        stage,
        1,
        bf16={"enabled": True},
        gradient_clipping=0.0,
        data_types={"grad_accum_dtype": summed_in},
    )
    model, loss_of = _model(branches=False)
    engine, *_ = dsengine.initialize(model=model, config=settings)
    for micro in range(MICRO_BATCHES):
        engine.set_gradient_accumulation_boundary(micro == MICRO_BATCHES - 1)
        engine.backward(loss_of(engine, micro, dist.get_rank()) / MICRO_BATCHES)
        engine.step()
    result = not_none(engine.get_global_grad_norm())
    engine.destroy()
    return result


def reference_norm(summed_in: str, sent_in: str, branches: bool = False) -> float:
    """Return the same norm computed with plain PyTorch on one rank for all ranks."""
    ranks, mean = dist.get_world_size(), dict[str, Tensor]()
    for rank in range(ranks):
        sums: dict[str, Tensor] = {}
        model, loss_of = _model(branches)
        model.to(models.device_type(), torch.bfloat16)
        for micro in range(MICRO_BATCHES):
            model.zero_grad()
            (loss_of(model, micro, rank) / MICRO_BATCHES).backward()
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    gradient = parameter.grad.to(DTYPES[summed_in])
                    sums[name] = sums[name] + gradient if name in sums else gradient
        for name, total in sums.items():
            sent = total.to(DTYPES[sent_in])
            mean[name] = mean[name] + sent if name in mean else sent
    norms = [(total.double() / ranks).norm() for total in mean.values()]
    return torch.stack(norms).norm().item()


def _model(branches: bool) -> tuple[nn.Module, Callable[[Any, int, int], Tensor]]:
    if not branches:
        return models.tied(), lambda model, micro, rank: model(models.batch(0, micro, rank))
    torch.manual_seed(0)
    return Double(), _loss_of_branches


def _loss_of_branches(model: Any, micro: int, rank: int) -> Tensor:
    """Use the second branch in one early micro batch of one rank only."""
    inputs = torch.ones(2, 8, dtype=torch.bfloat16, device=models.device_type()) * (
        1 + rank + micro
    )
    outputs = model(inputs)
    return outputs["first"] + outputs["second"] if (micro, rank) == (2, 1) else outputs["first"]
