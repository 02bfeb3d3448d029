"""The few places where PyTorch's own bookkeeping of ``fully_shard`` is touched.

Everything here is checked by a test against the installed torch; nothing else in the engine
uses a name of fully_shard that begins with an underscore.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule


def parameter_groups(unit: FSDPModule) -> list[Any]:
    """The groups of parameters that ``unit`` gathers itself."""
    state = unit._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        # Before torch 2.12 a module had at most one group.
        group = getattr(state, "_fsdp_param_group", None)
        return [] if group is None else [group]
    return list(groups)


def gather_asynchronously(root: FSDPModule) -> None:
    """Let gathers run beside the CPU's computation; only streams would do that by themselves."""
    root._set_unshard_async_op(True)


def sharded_entries(unit: FSDPModule) -> Iterator[Any]:
    """PyTorch's record of each parameter of ``unit``."""
    for group in parameter_groups(unit):
        yield from group.fsdp_params


def release_state_dict_hooks(unit: FSDPModule) -> None:
    """Take away the hooks by which state dicts swap the shards in.

    For a unit that is whole at rest they would turn a plain state dict into one of shards,
    and take a loaded whole parameter for a shard. Valid after the unit's first gather, which
    registers the hooks once and for all.
    """
    for group in parameter_groups(unit):
        for handles in (
            group._module_to_pre_save_state_dict_hook_handle,
            group._module_to_pre_load_state_dict_hook_handle,
        ):
            for handle in handles.values():
                handle.remove()
        for entry in group.fsdp_params:
            entry._post_load_hook_handle.remove()


def has_unreduced_gradients(unit: FSDPModule) -> bool:
    """Whether gradients came in after the unit's gradients had been reduced."""
    return any(
        entry._unsharded_param.grad is not None
        for entry in sharded_entries(unit)
        if hasattr(entry, "_unsharded_param")
    )


def accumulated_gradients(unit: FSDPModule) -> Iterator[Tensor]:
    """What the unit holds of gradients that are not reduced yet."""
    for entry in sharded_entries(unit):
        whole = getattr(entry, "_unsharded_param", None)
        for gradient in (entry.unsharded_accumulated_grad, getattr(whole, "grad", None)):
            if gradient is not None:
                yield gradient


def reduce_again(unit: FSDPModule) -> None:
    """Reduce what has come in since, and add it to the reduced gradients."""
    for group in parameter_groups(unit):
        group.post_backward()
        group.finalize_backward()
        group._training_state = type(group._training_state).IDLE


def reshard_within(unit: FSDPModule, mesh_info: Any = None) -> Any:
    """Reshard ``unit`` after forward over ``mesh_info``, None for its own; return which it is.

    Where units reshard to fewer ranks, ``fully_shard`` makes process groups for each of them. On
    GPUs every one would open communicators, with buffers on the device, of its own.
    """
    for group in parameter_groups(unit):
        if mesh_info is not None:
            group.post_forward_mesh_info = mesh_info
            for entry in group.fsdp_params:
                entry.post_forward_mesh_info = mesh_info
                shape = torch.empty(entry._orig_size, device="meta")
                entry._init_sharded_post_forward_param_metadata(shape)
        mesh_info = group.post_forward_mesh_info
    return mesh_info


def shard_of(entry: Any) -> Tensor:
    """This rank's part of a parameter, flat, padded to the size of the largest."""
    return entry._sharded_param_data


def whole_of(entry: Any) -> Tensor:
    """The storage of a gathered parameter, flat: one padded part for each rank."""
    return entry.all_gather_outputs[0]


def forbid_freeing(entry: Any) -> None:
    """Keep the storage of the whole parameter, also while its shards are registered."""
    entry.free_unsharded_param = lambda: None


def place_shard(entry: Any, place: Tensor) -> None:
    """Let the shard rest in ``place``, which already holds its values."""
    local = entry.sharded_param._local_tensor
    entry._sharded_param_data = place
    entry.sharded_param._local_tensor = place[: local.numel()].view(local.shape)
