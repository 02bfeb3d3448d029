"""Weights gathered once, for a model that generates many tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dsengine.sharding.zero.gathered import GatheredParameters


@contextmanager
def unwrap_model_for_generation(model: Any) -> Iterator[Any]:
    """Inside, every parameter of an engine is whole. Collective: all ranks generate."""
    with GatheredParameters(model.parameters()):
        yield model


__all__ = ["unwrap_model_for_generation"]
