"""Patches for DeepSpeed's tests on machines without a GPU."""

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel


def compute_in_bf16() -> None:
    """Prevent test files from skipping bf16 without CUDA; call before they are imported."""
    import unit.util

    unit.util.bf16_required_version_check = lambda *_, **__: True


def on_cpu() -> None:
    """Map device indices to the CPU for both packages."""
    import deepspeed.comm
    from deepspeed.accelerator import get_accelerator

    device: Any = get_accelerator()
    if device.device_name() != "cpu":
        return
    device.current_device = lambda: "cpu"
    gather: Any = deepspeed.comm.all_gather_into_tensor

    def gather_scalars(output: Any, tensor: Any, *args: Any, **named: Any) -> Any:
        return gather(output, tensor.reshape(-1), *args, **named)

    deepspeed.comm.all_gather_into_tensor = gather_scalars  # gloo does not support scalars
    original = DistributedDataParallel.__init__

    def without_devices(self: Any, *args: Any, **named: Any) -> None:
        original(self, *args, **(named | {"device_ids": None, "output_device": None}))

    DistributedDataParallel.__init__ = without_devices


def round_first() -> None:
    """Round models to the configured 16-bit dtype before ``initialize``."""
    import deepspeed

    package: Any = deepspeed
    original = package.initialize

    def initialize(*args: Any, **named: Any) -> Any:
        settings: Any = named.get("config")
        for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
            if isinstance(settings, dict) and settings.get(name, {}).get("enabled"):
                parameters = list(named["model"].parameters())
                with package.zero.GatheredParameters(parameters, modifier_rank=0), torch.no_grad():
                    for param in parameters:
                        param.data.copy_(param.data.to(dtype))
        return original(*args, **named)

    package.initialize = initialize
