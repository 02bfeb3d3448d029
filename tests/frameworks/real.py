"""Run a script on the real DeepSpeed, on the CPU: python -m frameworks.real script.py ARGS..."""

import runpy
import sys
from typing import Any

import torch

from training.live_jobs import real_deepspeed


def import_deepspeed() -> None:
    """Import the real DeepSpeed with fp16 enabled, which it does not support on every CPU."""
    accelerator: Any = real_deepspeed().accelerator.get_accelerator()
    accelerator.is_fp16_supported = lambda: True


def show_scalars_as_bytes() -> None:
    """Let DeepSpeed train zero-dimensional parameters.

    Release 0.19.8 broadcasts parameters viewed as bytes, which torch does not support for them.
    """
    view: Any = torch.Tensor.view

    def shown(tensor: torch.Tensor, *shape: Any, **named: Any) -> torch.Tensor:
        is_scalar = tensor.dim() == 0 and shape == (torch.uint8,)
        return view(tensor.reshape(1) if is_scalar else tensor, *shape, **named)

    torch.Tensor.view = shown  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    import_deepspeed()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
