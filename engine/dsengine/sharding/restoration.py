"""A model as it was before it was distributed, for another ``initialize`` of it.

[Note: what is left of an engine]
Nothing has to be: a script may have dropped it. So what distribution adds to a model is noted
beside the model, and the parameters come from the shards that the model holds. The
mechanism that still lives lets go by itself, and its engine refuses from then on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dsengine.parameters.names import own_parameters
from dsengine.parameters.shards import full_tensor_of
from dsengine.sharding.base import Sharding
from dsengine.sharding.zero.partitioned import is_partitioned_parameter
from dsengine.sharding.zero.registry import forget, master_of
from dsengine.torch_private import (
    Hook,
    ShardedParameter,
    hooks_below,
    parameter_table,
    remove_fully_shard,
    sharded_parameters_of,
    units_of,
)

_Place = tuple[ReferenceType[nn.Module], str]
"""Where a parameter is, whatever the module is called since."""


@dataclass(frozen=True, slots=True)
class _Before:
    """What cannot be seen on a distributed model."""

    hooks: set[Hook]
    parameters: dict[_Place, ReferenceType[nn.Parameter]]
    dtypes: dict[_Place, torch.dtype]


@dataclass(frozen=True, slots=True)
class _Distributed:
    """A model's ``before``, the hooks it has got since, and what has distributed it."""

    before: _Before
    hooks: set[Hook]
    sharding: ReferenceType[Sharding]


_DISTRIBUTED: WeakKeyDictionary[nn.Module, _Distributed] = WeakKeyDictionary()


def snapshot(root: nn.Module) -> _Before:
    """Return what is noted of ``root``, which is about to be distributed."""
    placed = {
        (ref(module), name): parameter
        for module in root.modules()
        for name, parameter in own_parameters(module)
    }
    return _Before(
        hooks_below(root),
        {
            place: ref(p)
            for place, p in placed.items()
            if type(p) is nn.Parameter or is_partitioned_parameter(p)
        },
        {place: each.dtype for place, each in placed.items()},
    )


def record_distribution(sharding: Sharding, before: _Before) -> None:
    """Let ``restore_model`` know the model of ``sharding``, which has just distributed it."""
    added = hooks_below(sharding.module) - before.hooks
    _DISTRIBUTED[sharding.module] = _Distributed(before, added, ref(sharding))


@torch.no_grad()
def restore_model(
    root: nn.Module, values: Mapping[str, Tensor] | None = None
) -> dict[Tensor, nn.Parameter]:
    """Make ``root``, and what is in it, ordinary modules again, whichever engines have had them.

    Parameters have the values of training, as precise as the shards are, and the dtypes from
    before; they are the objects from before where someone still holds these. Returns which
    parameter is in the place of what a script knows, shard or whole. Collective, but for those
    whose whole ``values`` are given by their names in ``root``.
    """
    replaced: dict[Tensor, nn.Parameter] = {}
    for module in list(root.modules()):
        if (noted := _DISTRIBUTED.pop(module, None)) is not None:
            replaced |= _restore_model(module, noted, values or {})
    return replaced


def _restore_model(
    root: nn.Module, noted: _Distributed, values: Mapping[str, Tensor]
) -> dict[Tensor, nn.Parameter]:
    before = noted.before
    if (sharding := noted.sharding()) is not None:
        sharding.detach()
    names = {module: name for name, module in root.named_modules()}
    ordinary: list[tuple[nn.Module, str, nn.Parameter]] = []
    replaced: dict[Tensor, nn.Parameter] = {}
    for record in sharded_parameters_of(units_of(root)):
        owners = [place for place in record.owners if place[0] in names and _has(record, *place)]
        if not owners:  # the script has put others in their places
            continue
        module, attribute = owners[0]
        shard = record.shard
        whole = values.get(".".join(filter(None, (names[module], attribute))))
        if whole is None or whole.shape != shard.shape:
            whole = full_tensor_of(cast(DTensor, shard))
        trains = parameter_table(module)[attribute].requires_grad
        parameter = _as_before(whole, (ref(module), attribute), before, trains)
        ordinary += [(module, attribute, parameter) for module, attribute in owners]
        replaced[shard] = replaced[record.shown] = parameter
        if record.was_gathered:
            replaced[record.whole] = parameter
    remove_fully_shard(root, noted.hooks)
    for module, attribute, parameter in ordinary:
        parameter_table(module)[attribute] = parameter
    for module in root.modules():
        for name, parameter in own_parameters(module):  # what nothing has divided
            master = master_of(parameter)
            if master is not None and not isinstance(master, DTensor):
                parameter.data = master.detach()
                forget(parameter)
            dtype = before.dtypes.get((ref(module), name), parameter.dtype)
            parameter.data = parameter.data.to(dtype)
            parameter.grad = None
    return replaced


def _has(record: ShardedParameter, module: nn.Module, name: str) -> bool:
    """Whether ``module`` still has the parameter there, divided or whole."""
    held = parameter_table(module).get(name)
    return held is record.shown or (record.was_gathered and held is record.whole)


def _as_before(whole: Tensor, place: _Place, before: _Before, trains: bool) -> nn.Parameter:
    whole = whole.detach().to(before.dtypes.get(place, whole.dtype), copy=True)
    known = before.parameters.get(place)
    original = None if known is None else known()
    if original is None:
        return nn.Parameter(whole, trains)
    forget(original)
    original.data, original.requires_grad = whole, trains
    return original
