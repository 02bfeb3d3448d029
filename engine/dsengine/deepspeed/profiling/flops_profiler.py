"""The FLOPs of one call of a model, without an engine."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

import dsconfig
from dsengine.observation.flops import FlopsProfile


def get_model_profile(
    model: nn.Module,
    input_shape: tuple[int, ...] | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    print_profile: bool = True,
    detailed: bool = True,
    module_depth: int = -1,
    top_modules: int = 1,
    warm_up: int = 1,
    as_string: bool = True,
    output_file: str | None = None,
    ignore_modules: Any = None,
    mode: str = "forward",
) -> tuple[Any, Any, Any]:
    """Return (FLOPs, multiply-adds, parameters) of ``model(*args, **kwargs)``, in evaluation mode.

    ``input_shape`` requests a single tensor of zeros; ``mode="generate"`` calls that method.
    Matrix products, convolutions and attention are counted, with two FLOPs per multiply-add;
    DeepSpeed adds those of elementwise functions. Returns numbers, or strings such as "1.50 G".
    Raises ValueError without inputs, and for ``ignore_modules``.
    """
    if ignore_modules is not None:
        raise ValueError("get_model_profile(ignore_modules=...) is not supported: omit it")
    if input_shape is not None:
        like = next(model.parameters(), torch.empty(0))
        args = (torch.zeros(input_shape, dtype=like.dtype, device=like.device),)
    elif not args and not kwargs:
        raise ValueError("get_model_profile() requires inputs of the model: args or kwargs")
    settings = {
        "module_depth": module_depth,
        "top_modules": top_modules,
        "detailed": detailed,
        "output_file": output_file,
    }
    profile = FlopsProfile(dsconfig.block_values("flops_profiler", settings), model)
    call = model if mode == "forward" else getattr(model, mode)
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for _ in range(warm_up):
            call(*args, **(kwargs or {}))
        with profile.counting():
            call(*args, **(kwargs or {}))
    model.train(was_training)
    if print_profile and not profile.write():
        print(profile.report(), flush=True)
    counts = (profile.flops, profile.flops // 2, sum(p.numel() for p in model.parameters()))
    return tuple(_format(count) for count in counts) if as_string else counts  # type: ignore[return-value]


def _format(count: int) -> str:
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "K")):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return str(count)


__all__ = ["get_model_profile"]
