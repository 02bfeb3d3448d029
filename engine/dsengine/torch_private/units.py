"""Units of ``fully_shard``: their parameters, shards and unreduced gradients.

Public: creating units, and when they are gathered and reduced. Offloaded optimizers, unsharded
parameters between steps and the unit-wise initialization of zero.Init need the rest.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.utils import _to_kwargs
from torch.utils._pytree import tree_map_only

from dsengine.torch_private.modules import parameter_table
from dsengine.torch_private.tensors import as_shard


class ShardedParameter:
    """torch's record of one parameter of a unit (``FSDPParam``), as far as the engine uses it."""

    __slots__ = ("_record",)

    def __init__(self, record: Any) -> None:
        self._record = record

    @property
    def owners(self) -> list[tuple[nn.Module, str]]:
        """Every (module, attribute) that has the parameter; several if it is tied."""
        info = self._record._module_info
        shared = zip(info.shared_modules, info.shared_param_names, strict=True)
        return [(info.module, info.param_name), *shared]

    @property
    def owner(self) -> nn.Module:
        """The module that has the parameter; the first one if it is tied."""
        return self._record._module_info.module

    @property
    def shard(self) -> nn.Parameter:
        """The DTensor that the optimizer steps; the same object until it is replaced."""
        return self._record.sharded_param

    @property
    def unsharded(self) -> Tensor:
        """The gathered parameter; valid while the unit is gathered."""
        return self._record.unsharded_param

    @property
    def flat_shard(self) -> Tensor:
        """The memory of this rank's shard, flat, padded to the largest shard."""
        return self._record._sharded_param_data

    @property
    def flat_unsharded(self) -> Tensor:
        """The memory of the gathered parameter, flat: one padded shard per rank."""
        return self._record.all_gather_outputs[0]

    @property
    def rank(self) -> int:
        """This rank's index among those that shard the parameter."""
        return self._record.mesh_info.shard_mesh_rank

    @property
    def ranks(self) -> int:
        return self._record.mesh_info.shard_mesh_size

    @property
    def is_on_host(self) -> bool:
        return self._record.offload_to_cpu

    @property
    def was_gathered(self) -> bool:
        """Whether ``unsharded`` exists; created by the first gather, it stays the same object."""
        return hasattr(self._record, "_unsharded_param")

    @property
    def leaves(self) -> list[Tensor]:
        """The tensors that may have gradients: the shard and, if it exists, the full parameter."""
        full = getattr(self._record, "_unsharded_param", None)
        return [self.shard] if full is None else [self.shard, full]

    @property
    def has_late_gradient(self) -> bool:
        """Whether there is a gradient that no reduction has used."""
        full = getattr(self._record, "_unsharded_param", None)
        return full is not None and full.grad is not None

    def unreduced(self) -> Iterator[Tensor]:
        """Yield the unreduced gradients, each tensor once.

        Gradients accumulated in another dtype than the weights' are stored separately; since torch
        2.15 in ``grad`` itself, to which the other name refers too.
        """
        full = getattr(self._record, "_unsharded_param", None)
        sums, gradient = self._record.unsharded_accumulated_grad, getattr(full, "grad", None)
        if sums is not None and sums is not gradient:
            yield sums
        if gradient is not None:
            yield gradient

    def drop_unreduced(self) -> None:
        """Drop the unreduced gradients."""
        full = getattr(self._record, "_unsharded_param", None)
        if full is not None:
            full.grad = None
        if self._record.unsharded_accumulated_grad is not None:  # since 2.15 an alias of ``grad``
            self._record.unsharded_accumulated_grad = None

    def replace(self, part: Tensor, *, requires_grad: bool = True) -> None:
        """Make ``part`` this rank's shard on every module that owns the parameter.

        Call it before the unit is first gathered, when torch fixes dtypes and memory.
        """
        shard = as_shard(part, cast(DTensor, self.shard))
        self._record._setattr_on_modules(nn.Parameter(shard, requires_grad))
        self._record.reset_sharded_param()

    def use_memory(self, flat: Tensor) -> None:
        """Make the shard, the same object, use the memory ``flat``, which has its values."""
        local = cast(DTensor, self.shard)._local_tensor
        self._record._sharded_param_data = flat
        cast(Any, self.shard)._local_tensor = flat[: local.numel()].view(local.shape)

    @property
    def view(self) -> nn.Parameter:
        """The parameter that modules have: the shard, unless ``set_view`` was called."""
        return vars(self._record).get("_dsengine_view", self.shard)

    def set_view(
        self, view: nn.Parameter, restore: Callable[[nn.Parameter, Tensor], None] | None = None
    ) -> None:
        """Give modules ``view`` instead of the shard; the shard itself removes the view.

        torch reads the shard back from a module that was moved, cast or loaded. ``restore`` is
        called with ``view`` and the module's current parameter before a module gets ``view`` again
        if they differ or a cast has swapped ``view`` for a copy.
        """
        record, shard, before = self._record, self.shard, self.view
        info = record._module_info
        for name in ("_setattr_on_modules", "reset_sharded_param", "_dsengine_view"):
            vars(record).pop(name, None)
        register, reset = record._setattr_on_modules, record.reset_sharded_param
        kind = type(view)

        def current() -> Any:
            return parameter_table(info.module).get(info.param_name)

        def register_view(parameter: nn.Parameter, found: Any = view) -> None:
            if parameter is shard:
                # Called for each parameter and use: most often nothing was cast or replaced.
                if restore is not None and (found is not view or type(view) is not kind):
                    restore(view, found)
                parameter = view
            register(parameter)

        def reset_shard() -> None:
            found = current()
            register(shard)
            reset()
            register_view(shard, view if found is shard else found)

        if view is not shard:
            record._setattr_on_modules, record.reset_sharded_param = register_view, reset_shard
            record._dsengine_view = view
        if current() is before:
            register(view)

    def keep_unsharded(self) -> None:
        """Never free the memory of the full parameter, even while its shard is registered."""
        self._record.free_unsharded_param = lambda: None


def parameter_groups(unit: FSDPModule) -> list[Any]:
    """Return the parameter groups that ``unit`` gathers itself."""
    state = unit._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # before torch 2.12 a module had at most one group
        group = getattr(state, "_fsdp_param_group", None)
        return [] if group is None else [group]
    return list(groups)


def sharded_parameters(unit: FSDPModule) -> Iterator[ShardedParameter]:
    """Yield the parameters that ``unit`` gathers itself, without those of nested units."""
    for group in parameter_groups(unit):
        yield from map(ShardedParameter, group.fsdp_params)


def sharded_parameters_of(units: Iterable[FSDPModule]) -> list[ShardedParameter]:
    """Return the parameters of ``units`` in order, each once.

    Several modules can form one unit; torch gives each of them all its parameters.
    """
    records = {
        id(record): record
        for unit in units
        for group in parameter_groups(unit)
        for record in group.fsdp_params
    }
    return [ShardedParameter(record) for record in records.values()]


def units_of(root: nn.Module) -> list[FSDPModule]:
    return [module for module in root.modules() if isinstance(module, FSDPModule)]


def units_without(units: Iterable[FSDPModule], other: Iterable[FSDPModule]) -> list[FSDPModule]:
    """Return those of ``units`` that have parameters and share none with ``other``.

    Several modules can form one unit; the root may have no parameters of its own.
    """
    excluded = {id(group) for unit in other for group in parameter_groups(unit)}
    groups = ((unit, {id(group) for group in parameter_groups(unit)}) for unit in units)
    return [unit for unit, own in groups if own and not excluded & own]


def is_gathered(unit: FSDPModule) -> bool:
    return any(group.is_unsharded for group in parameter_groups(unit))


@contextmanager
def kept_gathered(units: Sequence[FSDPModule]) -> Iterator[None]:
    """Gather ``units``, and reshard them on exit; forwards inside do not. Collective on entry.

    The public setter of whether a forward reshards cannot be read, and loses the number of ranks.
    """
    groups = {id(group): group for unit in units for group in parameter_groups(unit)}
    meshes = {key: group.post_forward_mesh_info for key, group in groups.items()}
    for group in groups.values():
        group.post_forward_mesh_info = None
    try:
        for unit in units:
            unit.unshard()
        yield
    finally:
        for key, group in groups.items():
            group.post_forward_mesh_info = meshes[key]
        for unit in units:
            unit.reshard()


def drop_unused_gathers(units: Iterable[FSDPModule]) -> None:
    """Complete gathers that nothing has used, and free what they gathered.

    A unit that was prefetched but not called would otherwise be used with these values later.
    """
    for unit in units:
        for group in parameter_groups(unit):
            if group._all_gather_result is not None:
                group.wait_for_unshard()
                group._to_sharded()


def unshard_asynchronously(root: FSDPModule) -> None:
    """Make gathers asynchronous on the CPU, where no streams overlap them."""
    root._set_unshard_async_op(True)


def initialize_root(root: FSDPModule) -> None:
    """Make ``root`` the FSDP root, whichever module is called first.

    The only public way is to call it first; a module called earlier becomes a second root.
    """
    cast(Any, root._get_fsdp_state())._lazy_init()


def remove_state_dict_hooks(unit: FSDPModule) -> None:
    """Remove the hooks with which state dicts swap in the shards.

    For a unit that stays unsharded they would produce state dicts of shards, and treat a loaded
    full parameter as a shard. Call after the unit's first gather, which registers the hooks once.
    """
    for group in parameter_groups(unit):
        for handles in (
            group._module_to_pre_save_state_dict_hook_handle,
            group._module_to_pre_load_state_dict_hook_handle,
        ):
            for handle in handles.values():
                handle.remove()
        for record in group.fsdp_params:
            record._post_load_hook_handle.remove()


def reduce_late_gradients(unit: FSDPModule) -> None:
    """Reduce gradients that arrived after the reduction, and add them. Collective."""
    for group in parameter_groups(unit):
        group.post_backward()
        group.finalize_backward()
        group._training_state = type(group._training_state).IDLE


def abort_pass(root: FSDPModule) -> None:
    """Reset FSDP's state after a failed forward or backward, so that forward can run again.

    Otherwise torch would wait forever for the end of that backward: its completion callback is
    marked as queued and is not queued again. Public since torch 2.13.
    """
    if (reset := getattr(root, "reset_iter_state", None)) is not None:
        with _gradients_kept(units_of(cast(nn.Module, root))):
            reset()
        return
    state = cast(Any, root._get_fsdp_state())
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # pending work may read what is freed here
    state._comm_ctx.all_gather_state = state._comm_ctx.reduce_scatter_state = None
    state._comm_ctx.post_forward_order.clear()
    for module_state in state._state_ctx.all_states:
        module_state._modules_to_run_forward.clear()
        module_state._training_state = type(module_state._training_state).IDLE
    for unit in units_of(cast(nn.Module, root)):
        for group in parameter_groups(unit):
            _abort_pass_of(group)
    state._state_ctx.iter_forward_root = None
    state._state_ctx.post_backward_final_callback_queued = False


@contextmanager
def _gradients_kept(units: Sequence[FSDPModule]) -> Iterator[None]:
    """Keep gradients that the code inside drops; the caller decides which to drop.

    Since torch 2.15 the reset drops them, including those of a window's earlier micro batches.
    """
    leaves = [
        leaf
        for record in sharded_parameters_of(units)
        for leaf in record.leaves
        if leaf.grad is not None
    ]
    saved = [(leaf, leaf.grad, getattr(leaf, "grad_dtype", None)) for leaf in leaves]
    yield
    for leaf, gradient, dtype in saved:
        if leaf.grad is None:
            if dtype is not None:
                cast(Any, leaf).grad_dtype = dtype
            leaf.grad = gradient


def _abort_pass_of(group: Any) -> None:
    if group._all_gather_result is not None:
        if isinstance(work := group._all_gather_result.all_gather_work, dist.Work):
            work.wait()
        group._all_gather_result = None
    group._post_reduce_event = group._all_reduce_state = None
    group._reshard_after_forward_event = group._partial_reduce_output = None
    group._post_forward_indices.clear()
    group._training_state = type(group._training_state).IDLE
    group._to_sharded()


def inputs_to(
    device: torch.device, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Move a forward's inputs to the device, with the function that ``fully_shard`` uses.

    Copies from page-locked memory, such as a data loader's, are not waited for.
    """
    inputs = (args, kwargs)
    args, kwargs = tree_map_only(Tensor, partial(_copy_pinned, device), inputs, _is_no_container)
    moved, named = _to_kwargs(args, kwargs, device, False)
    return (moved[0] if moved else ()), (named[0] if named else {})


def _is_no_container(value: Any) -> bool:
    """Whether ``value`` must not be rebuilt: a cache, for example, which the model fills."""
    return not isinstance(value, (tuple, list, dict))


def _copy_pinned(device: torch.device, tensor: Tensor) -> Tensor:
    is_pinned = tensor.device.type == "cpu" and tensor.is_pinned()
    return tensor.to(device, non_blocking=True) if is_pinned else tensor


def reshard_within(unit: FSDPModule, mesh_info: Any = None) -> Any:
    """Reshard ``unit`` after forward over ``mesh_info`` (None: its own); return the one used.

    If units reshard to fewer ranks, ``fully_shard`` creates process groups for each unit. On GPUs
    each group would create its own communicators, with device buffers.
    """
    for group in parameter_groups(unit):
        if mesh_info is not None:
            group.post_forward_mesh_info = mesh_info
            for record in group.fsdp_params:
                record.post_forward_mesh_info = mesh_info
                shape = torch.empty(record._orig_size, device="meta")
                record._init_sharded_post_forward_param_metadata(shape)
        mesh_info = group.post_forward_mesh_info
    return mesh_info
