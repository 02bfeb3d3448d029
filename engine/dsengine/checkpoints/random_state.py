"""State of the random generators that a training step may use."""

import random
from typing import Any

import numpy
import torch


def random_state() -> dict[str, Any]:
    """Return the state of this process's generators as plain data and tensors."""
    name, keys, position, has_gauss, gauss = numpy.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": list(random.getstate()),
        "numpy": [
            str(name),
            torch.from_numpy(numpy.asarray(keys, dtype=numpy.int64)),
            int(position),
            int(has_gauss),
            float(gauss),
        ],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Restore what ``random_state`` returned."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    numpy.random.set_state((name, keys.numpy().astype(numpy.uint32), position, has_gauss, cached))
