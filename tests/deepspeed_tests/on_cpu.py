"""What DeepSpeed's tests say of devices by number, on machines whose only device is the CPU."""

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel


def compute_in_bf16() -> None:
    """Before test files are imported: let none skip for want of CUDA and NCCL beside bf16."""
    import unit.util  # type: ignore[import-not-found]

    unit.util.bf16_required_version_check = lambda *_, **__: True


def on_cpu() -> None:
    """From now on, let device numbers mean the CPU to either package."""
    import deepspeed.comm  # type: ignore[import-untyped]
    from deepspeed.accelerator import get_accelerator  # type: ignore[import-untyped]

    device: Any = get_accelerator()
    if device.device_name() != "cpu":
        return
    device.current_device = lambda: "cpu"
    gather: Any = deepspeed.comm.all_gather_into_tensor

    def of_scalars_too(output: Any, tensor: Any, *args: Any, **named: Any) -> Any:
        return gather(output, tensor.reshape(-1), *args, **named)

    deepspeed.comm.all_gather_into_tensor = of_scalars_too  # gloo alone insists on a dimension
    original = DistributedDataParallel.__init__

    def without_numbers(self: Any, *args: Any, **named: Any) -> None:
        original(self, *args, **(named | {"device_ids": None, "output_device": None}))

    DistributedDataParallel.__init__ = without_numbers  # type: ignore[method-assign]


def round_first() -> None:
    """From now on, let ``initialize`` have models whose weights are of the 16 bits it is to use."""
    import deepspeed  # type: ignore[import-untyped]

    package: Any = deepspeed
    original = package.initialize

    def initialize(*args: Any, **named: Any) -> Any:
        settings: Any = named.get("config")
        for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
            if isinstance(settings, dict) and settings.get(name, {}).get("enabled"):
                parameters = list(named["model"].parameters())
                with package.zero.GatheredParameters(parameters, modifier_rank=0), torch.no_grad():
                    for each in parameters:
                        each.data.copy_(each.data.to(dtype))
        return original(*args, **named)

    package.initialize = initialize
