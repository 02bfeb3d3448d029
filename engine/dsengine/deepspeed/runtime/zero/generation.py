"""Gathering weights once for generating many tokens."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from dsengine.loop.optimizer_compat import ParameterOffload
from dsengine.sharding import Sharding
from dsengine.sharding.zero.gathered import GatheredParameters


@contextmanager
def unwrap_model_for_generation(model: Any) -> Iterator[Any]:
    """Unshard all parameters of an engine inside. Collective: all ranks generate.

    Forwards inside gather nothing if memory allows a second copy of the parameters;
    ``engine.generate`` needs only one.
    """
    offload = getattr(getattr(model, "optimizer", None), "parameter_offload", None)
    sharding = getattr(model, "sharding", None)
    gathered = sharding.gathered() if isinstance(sharding, Sharding) else nullcontext()
    with GatheredParameters(model.parameters()), gathered:
        if isinstance(offload, ParameterOffload):
            offload.remove_hooks()
        try:
            yield model
        finally:
            if isinstance(offload, ParameterOffload):
                offload._register_deepspeed_module(offload.module)


__all__ = ["unwrap_model_for_generation"]
