"""Weights gathered once, for a model that generates many tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dsengine.loop.optimizer_compat import ParameterOffload
from dsengine.sharding.zero.gathered import GatheredParameters


@contextmanager
def unwrap_model_for_generation(model: Any) -> Iterator[Any]:
    """Inside, every parameter of an engine is whole. Collective: all ranks generate."""
    told = getattr(getattr(model, "optimizer", None), "parameter_offload", None)
    with GatheredParameters(model.parameters()):
        if isinstance(told, ParameterOffload):
            told.remove_hooks()
        try:
            yield model
        finally:
            if isinstance(told, ParameterOffload):
                told._register_deepspeed_module(told.module)


__all__ = ["unwrap_model_for_generation"]
