"""Functions of scripts for tensors, modules, memory and releases."""

import gc
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
import torch.distributed as dist
from packaging.version import Version
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from dsengine.deepspeed.accelerators import get_accelerator
from dsengine.optimizers.gradients import EPSILON
from dsengine.tiers.memory import GIBI
from dsengine.topology import all_ranks, rank, world_size


def see_memory_usage(message: str, force: bool = False) -> None:
    """Print memory usage in GiB on rank 0 and reset the peak; nothing unless ``force``.

    MA: allocated on the device. CA: cached by its allocator. On the CPU both are resident memory.
    """
    if not force or rank() != 0:
        return
    gc.collect()
    device = get_accelerator()
    amounts = {
        "MA": device.memory_allocated(),
        "Max_MA": device.max_memory_allocated(),
        "CA": device.memory_reserved(),
        "Max_CA": device.max_memory_reserved(),
    }
    usage = " ".join(f"{name} {amount / GIBI:.2f} GiB" for name, amount in amounts.items())
    print(f"{message}\n{usage}", flush=True)
    device.reset_peak_memory_stats()


def move_to_device(
    item: Any, device: torch.device | str, criterion_func: Callable[[Any], bool] | None = None
) -> Any:
    """Return ``item`` with its tensors on ``device``, at any depth.

    Tensors for which ``criterion_func`` is true are moved in place, as the same object.
    """

    def move(tensor: Tensor) -> Tensor:
        if criterion_func is None or not criterion_func(tensor):
            return tensor.to(device)
        tensor.data = tensor.data.to(device)
        return tensor

    return tree_map_only(Tensor, move, item)


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2, mpu: Any = None
) -> Tensor:
    """Scale unsharded gradients in place to a norm of at most ``max_norm``; return the norm before.

    For tensors outside of an engine, whose ``step`` clips by itself. The norm is averaged over all
    ranks.
    """
    del mpu
    tensors = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients, norm_type)
    if dist.is_initialized():
        dist.all_reduce(norm, group=all_ranks())
        norm /= world_size()
    factor = (max_norm / (norm + EPSILON)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.to(gradient.device, gradient.dtype))
    return norm


def recursive_getattr(model: Any, module_name: str) -> Any:
    """Return the attribute ``module_name`` (``encoder.layers.0``) of ``model``."""
    value = model
    for name in module_name.split("."):
        value = getattr(value, name)
    return value


def recursive_setattr(model: Any, module_name: str, module: Any) -> None:
    """Set the attribute ``module_name`` of ``model`` to ``module``."""
    parent, _, name = module_name.rpartition(".")
    setattr(recursive_getattr(model, parent) if parent else model, name, module)


def required_torch_version(
    min_version: float | str | None = None, max_version: float | str | None = None
) -> bool:
    """Return whether torch's release is between the two, both inclusive.

    Raises ValueError without either.
    """
    if min_version is None and max_version is None:
        raise ValueError("pass min_version or max_version")
    release = Version(torch.__version__)
    above = min_version is None or Version(str(min_version)) <= release
    return above and (max_version is None or release <= Version(str(max_version)))


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
