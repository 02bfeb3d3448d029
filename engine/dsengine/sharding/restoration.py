"""Restoring a model to its state before distribution, for another ``initialize``.

[Note: what remains of an engine]
The script may have dropped the earlier engine. So what distribution adds to a model is recorded
next to the model, and the values come from the shards that the model holds. If the sharding still
exists it is detached, and its engine refuses further use.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dsengine.parallel.tensor import release_split_logits
from dsengine.parallel.transformers_attention import release_attention
from dsengine.parameters.names import own_parameters
from dsengine.parameters.shards import full_tensor_of
from dsengine.sharding.base import Sharding
from dsengine.sharding.zero.partitioned import is_partitioned_parameter
from dsengine.sharding.zero.registry import master_of, unlink
from dsengine.topology import Topology, release_topology
from dsengine.torch_private.modules import parameter_table
from dsengine.torch_private.removal import Hook, hooks_below, remove_fully_shard
from dsengine.torch_private.units import ShardedParameter, sharded_parameters_of, units_of

_Location = tuple[ReferenceType[nn.Module], str]
"""Module and attribute of a parameter, independent of the module's name."""


@dataclass(frozen=True, slots=True)
class _OriginalState:
    """State that a distributed model no longer shows."""

    hooks: set[Hook]
    parameters: dict[_Location, ReferenceType[nn.Parameter]]
    dtypes: dict[_Location, torch.dtype]


@dataclass(frozen=True, slots=True)
class _Distributed:
    """A model's state ``before``, the hooks added since, and its sharding."""

    before: _OriginalState
    hooks: set[Hook]
    sharding: ReferenceType[Sharding]
    topology: ReferenceType[Topology]


_DISTRIBUTED: WeakKeyDictionary[nn.Module, _Distributed] = WeakKeyDictionary()


def snapshot(root: nn.Module) -> _OriginalState:
    """Return the state of ``root``, which is about to be distributed."""
    parameters = {
        (ref(module), name): parameter
        for module in root.modules()
        for name, parameter in own_parameters(module)
    }
    return _OriginalState(
        hooks_below(root),
        {
            location: ref(p)
            for location, p in parameters.items()
            if type(p) is nn.Parameter or is_partitioned_parameter(p)
        },
        {location: p.dtype for location, p in parameters.items()},
    )


def record_distribution(sharding: Sharding, before: _OriginalState, topology: Topology) -> None:
    """Record the model of ``sharding``, just distributed, for ``restore_model``."""
    added = hooks_below(sharding.module) - before.hooks
    _DISTRIBUTED[sharding.module] = _Distributed(before, added, ref(sharding), ref(topology))


@torch.no_grad()
def restore_model(
    root: nn.Module, values: Mapping[str, Tensor] | None = None
) -> dict[Tensor, nn.Parameter]:
    """Turn ``root`` and its submodules into ordinary modules again, whichever engines had them.

    Parameters have the trained values, in the precision of the shards, and the original dtypes; the
    original objects are reused if a script still holds them. Returns the new parameter by each
    object a script may hold, shard or full. Collective, except for parameters whose full ``values``
    are given by name in ``root``.
    """
    replaced: dict[Tensor, nn.Parameter] = {}
    for module in list(root.modules()):
        if (record := _DISTRIBUTED.pop(module, None)) is not None:
            replaced |= _restore_model(module, record, values or {})
    return replaced


def _restore_model(
    root: nn.Module, distributed: _Distributed, values: Mapping[str, Tensor]
) -> dict[Tensor, nn.Parameter]:
    before = distributed.before
    if (sharding := distributed.sharding()) is not None:
        sharding.detach()
        release_attention(sharding)
        release_split_logits(root)
    if (topology := distributed.topology()) is not None:
        release_topology(topology)
    names = {module: name for name, module in root.named_modules()}
    ordinary: list[tuple[nn.Module, str, nn.Parameter]] = []
    replaced: dict[Tensor, nn.Parameter] = {}
    for record in sharded_parameters_of(units_of(root)):
        owners = [owner for owner in record.owners if owner[0] in names and _has(record, *owner)]
        if not owners:  # the script has replaced the parameter
            continue
        module, attribute = owners[0]
        shard = record.shard
        full = values.get(".".join(filter(None, (names[module], attribute))))
        if full is None or full.shape != shard.shape:
            full = full_tensor_of(cast(DTensor, shard))
        trains = parameter_table(module)[attribute].requires_grad
        parameter = _as_before(full, (ref(module), attribute), before, trains)
        ordinary += [(module, attribute, parameter) for module, attribute in owners]
        replaced[shard] = replaced[record.view] = parameter
        if record.was_gathered:
            replaced[record.unsharded] = parameter
    remove_fully_shard(root, distributed.hooks)
    for module, attribute, parameter in ordinary:
        parameter_table(module)[attribute] = parameter
    for module in root.modules():
        for name, parameter in own_parameters(module):  # parameters that are not sharded
            master = master_of(parameter)
            if master is not None and not isinstance(master, DTensor):
                parameter.data = master.detach()
                unlink(parameter)
            dtype = before.dtypes.get((ref(module), name), parameter.dtype)
            parameter.data = parameter.data.to(dtype)
            parameter.grad = None
    return replaced


def _has(record: ShardedParameter, module: nn.Module, name: str) -> bool:
    """Whether ``module`` still has the parameter, sharded or gathered."""
    current = parameter_table(module).get(name)
    return current is record.view or (record.was_gathered and current is record.unsharded)


def _as_before(
    full: Tensor, location: _Location, before: _OriginalState, trains: bool
) -> nn.Parameter:
    full = full.detach().to(before.dtypes.get(location, full.dtype), copy=True)
    reference = before.parameters.get(location)
    original = None if reference is None else reference()
    if original is None:
        return nn.Parameter(full, trains)
    unlink(original)
    original.data, original.requires_grad = full, trains
    return original
