"""Distribution of a model over ranks: one mechanism per file, chosen by stage and precision."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from dsconfig import Plan
from dsconfig.features.table import FEATURES
from dsengine.optimizers.precision import Policy
from dsengine.parallel.experts import split_experts
from dsengine.parallel.forwards import watch_forwards
from dsengine.parallel.pipeline.stages import select_stage
from dsengine.parallel.tensor import release_split_logits, split_layers
from dsengine.parallel.transformers_attention import (
    being_divided,
    divide_attention,
    keep_attention,
    release_attention,
)
from dsengine.parameters.quantized import quantize, quantized_layers
from dsengine.sharding.base import Gradients, Sharding, original_names
from dsengine.sharding.buffers import cast_buffers
from dsengine.sharding.fully_sharded import FullySharded
from dsengine.sharding.replicated import Replicated, ReplicatedGradients
from dsengine.sharding.restoration import record_distribution, restore_model, snapshot
from dsengine.sharding.sharded_gradients import ShardedGradients
from dsengine.sharding.to_device import broadcast_from_first, move_and_broadcast, move_buffers
from dsengine.sharding.zero.adoption import gather_all, is_partitioned
from dsengine.sharding.zero.registry import register_model
from dsengine.sharding.zero.rounded import restore_exact
from dsengine.tiers import OffloadedGradients
from dsengine.topology import Topology, release_topology
from dsengine.torch_private.removal import make_copyable

__all__ = [
    "SPLITS",
    "FullySharded",
    "Gradients",
    "Replicated",
    "Sharding",
    "distribute",
    "gradients_of",
    "restore_process",
]

Split = Callable[[nn.Module, Plan, Topology], None]
SPLITS: Mapping[str, Split | None] = {
    "tensor": split_layers,
    "expert": split_experts,
    "sequence": divide_attention,
    "pipeline": select_stage,
}
"""What divides a model along each axis before it is sharded, in this order.

Split layers and experts, split the sequence, select this rank's stage; None: not supported.
"""


def distribute(
    module: nn.Module, plan: Plan, policy: Policy, topology: Topology, device: torch.device
) -> tuple[Sharding, dict[Tensor, str]]:
    """Move ``module`` to ``device`` and distribute it as planned.

    Also return the original name of each parameter that a script may hold; keep it no longer than
    necessary, because it keeps full parameters alive next to the shards.

    The steps are those of ``SPLITS``, then sharding. All ranks with the same part of the model get
    the weights of the first of them, or those partitioned by zero.Init. A model of an earlier
    engine is taken over with its trained weights. Raises ValueError for a model sharded by other
    code.
    """
    with being_divided():
        return _distribute(module, plan, policy, topology, device)


def gradients_of(
    sharding: Sharding,
    plan: Plan,
    policy: Policy,
    topology: Topology,
    offloaded: OffloadedGradients | None,
) -> Gradients:
    """Return what reduces and sums the gradients of ``sharding``.

    ``offloaded``: their storage if the optimizer is offloaded.
    """
    found: Gradients
    if isinstance(sharding, FullySharded):
        found = ShardedGradients(sharding, offloaded, plan.effective)
    else:
        assert isinstance(sharding, Replicated)
        group = topology.group("gradients")
        found = ReplicatedGradients(sharding, offloaded, plan.effective, policy, group)
    sharding.at_detach(found.release)  # only once it is complete
    return found


def restore_process(sharding: Sharding, topology: Topology) -> None:
    """Undo what distribution has changed in the process, unless another engine needs it."""
    release_attention(sharding)
    if sharding.has_model:  # else the model belongs to another engine
        release_split_logits(sharding.module)
    release_topology(topology)


def _distribute(
    module: nn.Module, plan: Plan, policy: Policy, topology: Topology, device: torch.device
) -> tuple[Sharding, dict[Tensor, str]]:
    replaced = restore_model(module)
    if any(isinstance(submodule, FSDPModule) for submodule in module.modules()):
        raise ValueError(
            "this model is already under fully_shard, or is a submodule of an engine's model: "
            "build a new model for another initialize()"
        )
    before, named = snapshot(module), dict(module.named_parameters())
    if topology.mesh.splits_weights:
        _make_alike(module, topology)
    for axis, split in SPLITS.items():
        if split is not None and getattr(plan.mesh, axis) > 1:
            split(module, plan, topology)
    parts = dict(module.named_parameters())
    split = {old: name for name, old in named.items() if parts[name] is not old}
    del named, parts
    _prepare_quantized(module, plan, policy, topology, device)
    sharding, originals = _shard(module, plan, policy, topology, device)
    for layer in quantized_layers(module):
        layer.refer_to_weight()
    if topology.size("sequence") > 1:
        keep_attention(sharding)
    watch_forwards(module, topology, device, sharding)
    if not isinstance(sharding, Replicated) or topology.size("sequence") > 1:
        make_copyable(module)
    record_distribution(sharding, before, topology)
    originals |= split
    originals |= {old: originals[new] for old, new in replaced.items()}
    register_model(module, split, sharding.masters)
    return sharding, originals


def _prepare_quantized(
    module: nn.Module, plan: Plan, policy: Policy, topology: Topology, device: torch.device
) -> None:
    """Pack open weights of bitsandbytes and make all of them shardable. Collective.

    Raises ValueError for 8-bit weights at stage 3, and for packed ones in split layers.
    """
    quantize(module, device)
    layers = list(quantized_layers(module))
    if not layers:
        return
    if topology.mesh.splits_weights:
        raise ValueError(f"{layers[0].name}: {FEATURES['packed_weights_of_parts'].text}")
    for layer in layers:
        if plan.effective.zero.stage == 3 and not layer.is_four_bit:
            raise ValueError(f"{layer.name}: {FEATURES['eight_bit_shards'].text}")
        layer.view_as(policy.compute)
        layer.move_constants(device)
    constants = [tensor for layer in layers for tensor in layer.constants().values()]
    broadcast_from_first(constants, topology.group("gradients"))


def _make_alike(module: nn.Module, topology: Topology) -> None:
    """Give all ranks that split weights the full weights of the first. Collective."""
    for parameter in module.parameters():
        restore_exact(parameter)
    gather_all(module)
    broadcast_from_first((*module.parameters(), *module.buffers()), topology.group("stage"))


def _shard(
    module: nn.Module, plan: Plan, policy: Policy, topology: Topology, device: torch.device
) -> tuple[Sharding, dict[Tensor, str]]:
    stage = plan.effective.zero.stage
    for parameter in module.parameters():
        restore_exact(parameter)
    if is_partitioned(module) and stage < 3:
        gather_all(module)
    gradients = topology.group("gradients")
    replicates = stage == 0 and not topology.mesh.splits_weights
    if replicates:
        move_and_broadcast(module, device, policy.initial_dtype, gradients)
    else:  # parameters are moved unit by unit
        move_buffers(module, device)
        broadcast_from_first(module.buffers(), gradients)
    cast_buffers(module, policy)
    originals = original_names(module)
    if replicates:
        return Replicated(module, policy), originals
    return FullySharded(module, plan, policy, topology, device), originals
