"""Jobs with quantized collectives (ZeRO++). Each function runs on every rank."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import dsengine
from dsengine.communication import quantized
from training import jobs, models


def reduction(elements: int, magnitude: float) -> dict[str, float]:
    """Return the largest error of a quantized mean, and its bound: half a scale per rank."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(ranks, ranks, elements, generator=generator) * magnitude
    output = torch.empty(elements)
    group = dist.group.WORLD
    assert group is not None
    quantized.QuantizedReduceScatter(1 / ranks)(output, inputs[rank].flatten(), group, None)
    own = inputs[:, rank]
    bound = own.abs().amax(1).sum() / (2 * 7 * ranks)
    return {"error": float((output - own.mean(0)).abs().max()), "bound": float(bound)}


def gathered(config: dict[str, Any], freeze: str = "") -> dict[str, Any]:
    """Return the errors of gathered weights in multiples of their scale, and of exported ones.

    ``freeze``: part of the names of frozen parameters.
    """
    reference: dict[str, Tensor] = {n: p.detach() for n, p in models.tied().named_parameters()}
    model = models.tied()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not freeze or freeze not in name)
    engine, *_ = dsengine.initialize(model=model, config=config)
    seen: dict[str, Tensor] = {}
    block = engine.module.get_submodule("blocks.0")

    def look(module: Any, *_: Any) -> None:
        seen.update({f"blocks.0.{n}": p.detach().clone() for n, p in module.named_parameters()})

    block.register_forward_hook(look, prepend=True)
    engine(models.batch(0, 0, dist.get_rank()))
    errors = {
        name: float((full - reference[name]).abs().max())
        / max(float(reference[name].abs().max()) / 127, 1e-9)
        for name, full in seen.items()
        if type(full) is Tensor
    }
    exported = dict(engine.iter_weights(names="module"))
    exact = all(torch.equal(exported[name], reference[name]) for name in reference)
    engine.destroy()
    return {"errors": errors, "exact": exact}


def losses(config: dict[str, Any], steps: int = 12) -> list[float]:
    return jobs.losses(config, steps)
