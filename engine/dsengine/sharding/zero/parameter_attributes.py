"""What DeepSpeed attaches to the parameters of stage 3, beyond their status.

[Note: attributes of torch's classes]
A parameter of stage 3 is a DTensor, a view of one, a Parameter of zero.Init or a gathered one, and
changes between them. Its shard is replaced when states move. Attributes of the object would refer
to a former shard, and be copied and pickled with it. So the attributes here are descriptors of
torch's two classes, which read the current shard of a parameter with a ``ds_id`` and do not exist
for any other tensor.
"""

from collections.abc import Callable, Iterable
from enum import Enum, auto
from functools import cache
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dsconfig.features.deepspeed_names import PARAMETERS, missing
from dsengine.sharding.zero.external import uses_elsewhere
from dsengine.sharding.zero.gathered import GatheredParameters
from dsengine.sharding.zero.status import shard_of
from dsengine.topology import current
from dsengine.torch_private.tensors import local_part, plain_tensors

_gathered: dict[int, GatheredParameters] = {}
"""What ``all_gather`` has gathered, by the id of the parameter."""


class ZeroParamType(Enum):
    """Kinds of parameters in DeepSpeed; all of stage 3 are partitioned."""

    NORMAL = auto()
    PARTITIONED = auto()
    REMOTE = auto()


def _stored(parameter: Tensor) -> Tensor:
    """Return the tensor that stores this rank's elements, a DTensor or a local one."""
    shard = shard_of(parameter)
    return vars(shard).get("_shard", shard)


def _flat_shard(parameter: Tensor) -> Tensor:
    """Return this rank's elements, flat; shares memory unless the stored ones are more precise."""
    with plain_tensors():
        local = local_part(_stored(parameter)).detach()
        return local.to(parameter.dtype).reshape(-1)


def _numel(parameter: Tensor) -> int:
    with plain_tensors():
        return local_part(_stored(parameter)).numel()


def _group(parameter: Tensor) -> dist.ProcessGroup:
    """Return the ranks that share the parameter."""
    stored = _stored(parameter)
    if isinstance(stored, DTensor):
        return stored.device_mesh.get_group(stored.device_mesh.ndim - 1)
    return current().group_for(stored, "all")


def _summary(parameter: Any, use_debug_name: bool = False) -> dict[str, Any]:
    del use_debug_name
    gradient = parameter.grad
    return {
        "id": parameter.ds_id,
        "status": parameter.ds_status.name,
        "numel": parameter.numel(),
        "ds_numel": parameter.ds_numel,
        "shape": tuple(parameter.shape),
        "ds_shape": tuple(parameter.ds_shape),
        "requires_grad": parameter.requires_grad,
        "grad_shape": None if gradient is None else tuple(gradient.shape),
        "persist": parameter.ds_persist,
        "ds_tensor.shape": parameter.ds_tensor.shape,
    }


def _all_gather(
    parameter: Tensor,
    param_list: Iterable[Tensor] | None = None,
    async_op: bool = False,
    hierarchy: int = 0,
) -> list[Any]:
    """Make parameters full until ``partition``; return no handles to wait for. Collective."""
    del async_op, hierarchy
    for each in [parameter] if param_list is None else param_list:
        if id(each) not in _gathered:
            context = _gathered[id(each)] = GatheredParameters([each])
            context.__enter__()
    return []


def _partition(
    parameter: Tensor,
    param_list: Iterable[Tensor] | None = None,
    hierarchy: int = 0,
    has_been_updated: bool = False,
    free_data: bool = True,
) -> None:
    """Undo ``all_gather``; keep rank 0's changes if ``has_been_updated``. Collective."""
    del hierarchy, free_data
    for each in [parameter] if param_list is None else param_list:
        context = _gathered.pop(id(each), None)
        if context is not None:
            if has_been_updated:
                context.keep_changes_of(0)
            context.__exit__()


VALUES: dict[str, Callable[[Any], Any]] = {
    "ds_active_sub_modules": lambda parameter: set(),  # as between DeepSpeed's passes
    "ds_enable_sanity_checks": lambda parameter: False,
    "ds_param_type": lambda parameter: ZeroParamType.PARTITIONED,
    "ds_process_group": _group,
    "ds_secondary_tensor": lambda parameter: None,
    "ds_tensor": _flat_shard,
    "ds_zero_partition_rank": lambda parameter: _group(parameter).rank(),
    "ds_zero_partition_world_size": lambda parameter: _group(parameter).size(),
    "is_external_param": uses_elsewhere,
}
METHODS: dict[str, Callable[..., Any]] = {
    "all_gather": _all_gather,
    "aligned_size": lambda parameter: parameter.ds_numel,  # shards are not padded
    "ds_summary": _summary,
    "padding_size": lambda parameter: 0,
    "partition": _partition,
    "partition_numel": _numel,
}


class _Attribute:
    """An attribute of parameters that have a ``ds_id``. Assigned values replace it."""

    def __init__(self, name: str, read: Callable[[Any], Any]) -> None:
        self._name, self._read = name, read

    def __get__(self, parameter: Any, owner: type) -> Any:
        if parameter is None or "ds_id" not in vars(parameter):
            kind = owner.__name__
            raise AttributeError(f"{kind!r} object has no attribute {self._name!r}")
        return self._read(parameter)


def _bound(method: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda parameter: lambda *args, **kwargs: method(parameter, *args, **kwargs)


def _refused(name: str) -> Callable[[Any], Any]:
    def read(parameter: Any) -> Any:
        del parameter
        raise AttributeError(missing(f"Parameter.{name}", PARAMETERS[name]))

    return read


@cache
def install_parameter_attributes() -> None:
    """Add the attributes to torch's classes, before the first parameter of stage 3."""
    reads = dict(VALUES)
    reads |= {name: _bound(method) for name, method in METHODS.items()}
    reads |= {name: _refused(name) for name in PARAMETERS}
    for kind in (nn.Parameter, DTensor):
        for name, read in reads.items():
            setattr(kind, name, _Attribute(name, read))
