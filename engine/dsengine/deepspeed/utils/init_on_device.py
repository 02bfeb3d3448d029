"""Building a model on a device and in a dtype: ``deepspeed.OnDevice``."""

from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode

_CONSTRUCTORS = {torch.empty, torch.zeros, torch.ones, torch.full}


class OnDevice(TorchFunctionMode):
    """Inside, new tensors are on ``device``, and floating-point ones have ``dtype``.

        with OnDevice(dtype=torch.bfloat16, device="meta"):
            model = Model()

    As in DeepSpeed, an explicit device is respected, but an explicit floating-point dtype is not.
    ``enabled=False`` turns it off.
    """

    def __init__(
        self, dtype: torch.dtype, device: torch.device | str = "meta", enabled: bool = True
    ) -> None:
        super().__init__()
        self.dtype, self.enabled = dtype, enabled
        self.device = torch.device(device)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func not in _CONSTRUCTORS:
            return func(*args, **kwargs)
        if kwargs.get("device") is None:
            kwargs["device"] = self.device
        tensor = func(*args, **kwargs)
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(self.dtype)  # keeps it a leaf
        return tensor

    def __enter__(self) -> Self:
        return super().__enter__() if self.enabled else self

    def __exit__(self, *reason: Any) -> None:
        if self.enabled:
            super().__exit__(*reason)


__all__ = ["OnDevice"]
