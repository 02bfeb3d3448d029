"""Every private PyTorch name the engine uses. No other file of dsengine uses any.

Each section states why no public API is enough and what is assumed. ``tests/engine_torch`` checks
the installed torch against every section; run it with a new torch release to list what changed.

Patched for the whole process within a ``with`` block: ``UntypedStorage.resize_``
(``observe_resizes``), ``torch.distributed.get_backend``, ``torch.cuda.is_available`` and
``torch.accelerator.current_accelerator`` (``fake_process_group``). Changed on a model under an
engine: a module's parameter table (``replace_parameter_table``), its ``__deepcopy__``
(``make_copyable``) and the hooks with which ``fully_shard`` swaps shards into state dicts
(``remove_state_dict_hooks``). All of these and ``fully_shard`` itself are removed when another
``initialize`` takes the model over (``remove_fully_shard``).
"""

import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from weakref import ReferenceType, ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.variable import Variable
from torch.distributed._composable_state import _module_state_mapping
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.utils import _to_kwargs
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils._pytree import tree_map_only

from dsengine.loading import gc_disabled

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

_torch = cast(Any, torch)


def load_compiler() -> None:
    """Import ``torch._dynamo``, which every torch optimizer imports on first use."""
    if "torch._dynamo" not in sys.modules:
        with gc_disabled():
            import torch._dynamo as _  # noqa: F401


# Units of fully_shard
#
# Public: creating units, and when they are gathered and reduced. Private: the parameters of a unit,
# where their shards are stored, and their unreduced gradients. Offloaded optimizers, unsharded
# parameters between steps and the unit-wise initialization of zero.Init need these.


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
        called with ``view`` and the module's current parameter before a module gets ``view`` again,
        because a cast swaps ``view`` for a copy.
        """
        record, shard, before = self._record, self.shard, self.view
        info = record._module_info
        for name in ("_setattr_on_modules", "reset_sharded_param", "_dsengine_view"):
            vars(record).pop(name, None)
        register, reset = record._setattr_on_modules, record.reset_sharded_param

        def current() -> Any:
            return parameter_table(info.module).get(info.param_name)

        def register_view(parameter: nn.Parameter, found: Any = view) -> None:
            if parameter is shard and restore is not None:
                restore(view, found)
            register(view if parameter is shard else parameter)

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


def is_gathered(unit: FSDPModule) -> bool:
    return any(group.is_unsharded for group in parameter_groups(unit))


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


_MARKS = ("__composable_api", "__deepcopy__", "_is_fsdp_managed", "_fsdp_use_orig")
"""Prefixes of the attributes with which ``fully_shard`` and this file mark a module."""


def make_copyable(root: nn.Module) -> None:
    """Make ``copy.deepcopy`` of ``root`` or a submodule return an ordinary module.

    ``fully_shard`` forbids copies, because copied shards would share its bookkeeping. Unsharded
    parameters have nothing to share: the copy, for EMA, evaluation or export, has its own full
    parameters and no hooks.
    """
    for module in root.modules():
        module.__dict__["__deepcopy__"] = partial(_ordinary_copy, module)


def _ordinary_kind(module: nn.Module) -> type[nn.Module]:
    """Return the module's class before ``fully_shard``."""
    kind = type(module)
    if issubclass(kind, FSDPModule):
        kind = next(base for base in kind.__mro__[1:] if not issubclass(base, FSDPModule))
        kind = kind if issubclass(kind, nn.Module) else nn.Module
    return kind


def _ordinary_copy(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    kind = _ordinary_kind(module)
    copied = kind.__new__(kind)
    memo[id(module)] = copied
    for key, value in module.__dict__.items():
        if key == "_parameters":
            copied.__dict__[key] = {n: _copied_parameter(p, memo) for n, p in value.items()}
        elif "_hooks" in key and isinstance(value, dict):
            copied.__dict__[key] = OrderedDict()
        elif not key.startswith(_MARKS):
            copied.__dict__[key] = deepcopy(value, memo)
    return copied


def _copied_parameter(parameter: Tensor | None, memo: dict[int, Any]) -> nn.Parameter | None:
    if parameter is None:
        return None
    if id(parameter) not in memo:
        with torch.no_grad():
            memo[id(parameter)] = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
    return memo[id(parameter)]


Hook = tuple[ReferenceType[nn.Module], str, int]
"""A module hook: module, attribute of the hook table, key in it."""


def hooks_below(root: nn.Module) -> set[Hook]:
    """Return every hook of ``root`` and its submodules."""
    return {
        (ref(module), table, key)
        for module in root.modules()
        for table, hooks in vars(module).items()
        if "_hooks" in table and isinstance(hooks, dict)
        for key in cast(Iterable[int], hooks)
    }


def remove_fully_shard(root: nn.Module, hooks: Iterable[Hook]) -> None:
    """Remove ``fully_shard`` from ``root`` and its submodules, and remove ``hooks``.

    ``fully_shard`` has no undo. Its parameters, sharded or gathered, stay on the modules; the
    caller replaces them.
    """
    for reference, table, key in hooks:
        if (module := reference()) is not None:
            vars(module)[table].pop(key, None)
    for module in root.modules():
        module.__class__ = _ordinary_kind(module)
        _module_state_mapping.pop(module, None)
        for mark in [name for name in vars(module) if name.startswith(_MARKS)]:
            del vars(module)[mark]
        replace_parameter_table(module, dict(parameter_table(module)))


# DTensor
#
# Public constructors (``from_local``, ``distribute_tensor``) move the shard to the mesh's device;
# shards of an offloaded optimizer are on the host. The public accessor (``to_local``) returns a new
# tensor with its own version counter.


@torch.no_grad()
def as_shard(part: Tensor, like: DTensor) -> DTensor:
    """Return this rank's ``part`` as a DTensor sharded like ``like``, in the same memory."""
    spec = like._spec
    if spec.tensor_meta is None:
        raise ValueError("expected a DTensor with shape and dtype")
    spec = replace(spec, tensor_meta=spec.tensor_meta._replace(dtype=part.dtype))
    return DTensor(part.detach(), spec, requires_grad=False)


def local_part(tensor: Tensor) -> Tensor:
    """Return the local tensor of a DTensor, the same object, or the tensor itself."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def shard_slices(like: DTensor) -> tuple[slice, ...]:
    """Return this rank's slice of the full tensor, axis by axis."""
    shape, offset = compute_local_shape_and_global_offset(
        like.shape, like.device_mesh, like.placements
    )
    return tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))


# Modules, tensors and autograd


class MoveAwareModule(nn.Module):
    """A module with a hook for ``to``, ``cuda``, ``half`` ...

    Public hooks exist for calls and state dicts only.
    """

    def moving_tensors(self) -> AbstractContextManager[None]:
        """Return the context in which all tensors of the module are moved or cast."""
        raise NotImplementedError

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        with self.moving_tensors():
            super()._apply(fn, recurse)
        return self


WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")
"""Path elements that torch.compile and activation checkpointing add to parameter names."""


def persistent_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers of ``module`` itself that belong to its state dict."""
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            yield name, buffer


def children_of(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield each child under each of its names; ``named_children`` skips repetitions."""
    for name, child in module._modules.items():
        if child is not None:
            yield name, child


def parameter_table(module: nn.Module) -> dict[str, Any]:
    """Return the dict in which ``module.weight`` is looked up; reading it runs no hook.

    Writing to it runs neither registration hooks of zero.Init nor a class's ``__setattr__``.
    """
    return module._parameters


def buffer_table(module: nn.Module) -> dict[str, Tensor | None]:
    """Return the dict of ``module``'s own buffers; setting an attribute may register a new one."""
    return module._buffers


def replace_parameter_table(module: nn.Module, table: dict[str, Any]) -> None:
    module.__dict__["_parameters"] = table


def is_functorch_tensor(tensor: Tensor) -> bool:
    """Whether ``tensor`` is a ``torch.func`` tensor, whose backward is not that of a loss."""
    return _torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def version_of(tensor: Tensor) -> int:
    """Return how often the tensor's memory was written to."""
    return tensor._version


def preserve_versions(tensors: Sequence[Tensor]) -> AbstractContextManager[None]:
    """Return a context in which writes to ``tensors`` do not change version counters."""
    return cast(Any, torch.autograd)._unsafe_preserve_version_counter(tuple(tensors))


def storage_key(tensor: Tensor | torch.UntypedStorage) -> int:
    """Return a key of the tensor's storage. ``data_ptr`` is 0 for every empty storage."""
    storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else tensor
    return storage._cdata


def is_in_backward() -> bool:
    """Whether this thread is inside a backward."""
    return _torch._C._current_graph_task_id() != -1


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Within a backward, call ``callback`` once all of its gradients are computed."""
    cast(Any, Variable)._execution_engine.queue_callback(callback)


plain_tensors: Any = _torch._C.DisableTorchFunctionSubclass
"""A context in which Tensor subclasses do not dispatch to ``__torch_function__``.

The public ``DisableTorchFunction`` also disables modes such as ``torch.device``.
"""

backward_hooks_of: Any = _torch.Tensor._backward_hooks.__get__
"""The attribute of parameters that ``deepcopy`` and pickle read."""

READ_OF_A_VALUE: Any = _torch.ops.aten._local_scalar_dense.default
"""The operator behind ``item()`` and ``bool()``."""


@contextmanager
def observe_resizes(seen: Callable[[torch.UntypedStorage, int], None]) -> Iterator[None]:
    """Inside, call ``seen(storage, bytes before)`` after each in-place resize of a storage.

    ``fully_shard`` frees and refills gathered parameters this way, without the dispatcher.
    """
    original = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        before = storage.nbytes()
        result = original(storage, size)
        seen(storage, before)
        return result

    with replaced(torch.UntypedStorage, "resize_", resize_):
        yield


# Multi-tensor operations, which torch exports untyped under private names


def foreach_norm(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the 2-norm of each tensor as a scalar tensor."""
    return list(_torch._foreach_norm(list(tensors), 2.0))


def foreach_mul_(tensors: Sequence[Tensor], factor: float) -> None:
    _torch._foreach_mul_(list(tensors), factor)


def foreach_copy_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its target, casting if dtypes differ."""
    _torch._foreach_copy_(list(targets), list(sources))


def foreach_lerp(starts: Sequence[Tensor], ends: Sequence[Any], weight: float) -> list[Tensor]:
    """Return ``start + weight * (end - start)`` of each pair."""
    return list(_torch._foreach_lerp(list(starts), list(ends), weight))


def foreach_lerp_(starts: Sequence[Tensor], ends: Sequence[Any], weight: float) -> None:
    _torch._foreach_lerp_(list(starts), list(ends), weight)


def foreach_step_by_sign_(
    targets: Sequence[Tensor], directions: Sequence[Tensor], factor: float
) -> None:
    """Add ``factor`` times each direction's sign to its target; overwrites ``directions``."""
    _torch._foreach_sign_(list(directions))
    _torch._foreach_add_(list(targets), list(directions), alpha=factor)


# Process groups
#
# Public: ranks and backend name. Private: the devices a group supports, the store it was created
# with, how many collectives it has issued, aborting a hung communicator, broadcasting many tensors
# at once, the state of gloo's threads.

all_gather_flat: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Gathers every rank's flat tensor into one. Public, but renamed in 2.13, where the old name warns.
"""


def supports_device(group: dist.ProcessGroup, device: str) -> bool:
    """Whether ``group`` supports tensors of that device type."""
    return torch.device(device) in group._device_types


def default_store() -> Any:
    """Return the store of the default group."""
    return dist.distributed_c10d._get_default_store()


def flattened(mesh: DeviceMesh, name: str) -> DeviceMesh:
    """Return the one axis ``name`` over all axes of ``mesh``. Collective on the first call."""
    return mesh._flatten(name)


def unflattened(mesh: DeviceMesh, axes: Mapping[str, int]) -> DeviceMesh:
    """Return the one axis of ``mesh`` as several ``axes`` of these sizes. Collective."""
    return mesh._unflatten(0, tuple(axes.values()), tuple(axes))


def concatenated(meshes: list[DeviceMesh]) -> DeviceMesh:
    """Return the axes of several parts of one mesh."""
    return DeviceMesh._concatenate(meshes)


def broadcast_coalesced(
    tensors: list[Tensor], bytes_at_once: int, group: dist.ProcessGroup
) -> None:
    """Broadcast the values of the group's first rank, many tensors per message."""
    cast(Any, dist)._broadcast_coalesced(group, tensors, bytes_at_once, 0)


def issued_collectives() -> dict[str, int]:
    """Return how many collectives this process has issued, by group and transport.

    A rank's host may run ahead of its GPU, so an issued collective may not have begun. Names are
    the same on all ranks of a group. gloo also counts messages; a transport that does not count is
    left out.
    """
    issued: dict[str, int] = {}
    for group, name in list(dist.distributed_c10d._world.pg_names.items()):
        if (size := group.size()) == 1:
            continue
        for device in group._device_types:
            with suppress(RuntimeError):
                backend = cast(Any, group._get_backend(device))
                count = backend._get_sequence_number_for_group()
                issued[f"group {name} of {size} ranks, {backend.name()}"] = count
    return issued


def abort_communicators() -> None:
    """Make accelerator collectives that wait for a lost rank fail with an error. May hang.

    All within one NCCL group, as torch's own abort: one by one, each could wait for another.
    """
    backends: list[Any] = []
    for group in list(dist.distributed_c10d._world.pg_names):
        with suppress(RuntimeError):  # a group without an accelerator backend
            backends.append(group._get_backend(torch.device("cuda")))
    groups = [backend for backend in backends if hasattr(backend, "_group_start")]
    if groups:
        groups[0]._group_start()
    try:
        for backend in backends:
            with suppress(RuntimeError):
                backend.abort()
    finally:
        if groups:
            groups[0]._group_end()


GLOO_THREAD = "pt_gloo_runloop"
"""Name of the threads that run gloo's collectives, where threads have names (Linux)."""


def arm_reducer(parallel: DistributedDataParallel, loss: Tensor) -> None:
    """Make the coming backward of ``loss`` reduce, whatever the last forward set.

    The public way is a forward outside ``no_sync``.
    """
    parallel.reducer._rebuild_buckets()
    parallel.reducer.prepare_for_backward([loss])


COLLECTIVES: Mapping[str, str] = {
    "allreduce_": "all_reduce",
    "_allgather_base_": "all_gather_into_tensor",
    "allgather_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "reduce_scatter_": "reduce_scatter",
    "broadcast_": "broadcast",
    "barrier": "barrier",
}
"""Public names by dispatcher name."""


def collective_of(operation: Any) -> str | None:
    """Return the dispatcher's name of a collective or message, None for other operators."""
    communicates = operation.namespace in ("c10d", "_c10d_functional")
    return operation._opname if communicates else None


# Dry runs
#
# Fake tensors are public only as a debugging aid of torch.compile; there is no public fake group.


def fake_tensors() -> "FakeTensorMode":
    """Return a mode in which tensors have no data; real tensors become fake when used."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def is_fake(tensor: Any) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


@contextmanager
def fake_process_group(rank: int, ranks: int, backend: str) -> Iterator[None]:
    """Inside, create a default group whose collectives do nothing, on a machine without a GPU.

    ``torch.distributed.get_backend``, which the engine queries, returns ``backend``.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        with (
            replaced(dist, "get_backend", lambda *_: backend),
            replaced(torch.accelerator, "current_accelerator", lambda *_, **__: None),
            replaced(torch.cuda, "is_available", lambda: False),
        ):
            yield
    finally:
        dist.destroy_process_group()


MESH_INFO = "_get_post_forward_mesh_info"


@contextmanager
def real_reshard_meshes() -> Iterator[None]:
    """Inside, ``fully_shard`` creates meshes for resharding to fewer ranks from real tensors, under
    fake tensors too."""
    from torch.distributed.fsdp._fully_shard import _fully_shard
    from torch.utils._python_dispatch import _disable_current_modes

    create = getattr(_fully_shard, MESH_INFO)

    def create_real(*arguments: Any) -> Any:
        with _disable_current_modes():
            return create(*arguments)

    with replaced(_fully_shard, MESH_INFO, create_real):
        yield


@contextmanager
def replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    """Set ``holder.name`` to ``value`` inside."""
    original = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, original)


# Hooks on an optimizer's step
#
# Public: adding and removing them, and a wrapper that runs them around a function. Private: the
# hook tables, needed to skip hooks if one training step consists of many optimizer steps.


def step_hooks_once(optimizer: Optimizer, step: Callable[[], None]) -> None:
    """Run ``optimizer``'s step hooks once around ``step``, and not in its calls inside."""
    tables: list[dict[int, Any]] = [
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        _global_optimizer_pre_hooks,
        _global_optimizer_post_hooks,
    ]

    def without_hooks(_: Optimizer) -> None:
        saved = [dict(table) for table in tables]
        for table in tables:
            table.clear()
        try:
            step()
        finally:
            for table, hooks in zip(tables, saved, strict=True):
                table.update(hooks)

    Optimizer.profile_hook_step(without_hooks)(optimizer)


# Names in pickles of files written by torch, which are read without running code


_LAYOUTS = {str(v): v for v in vars(torch).values() if isinstance(v, torch.layout)}


def _layout(name: str) -> torch.layout:
    """Return a layout by name; only layouts, so that files cannot call other torch functions."""
    if name not in _LAYOUTS:
        raise pickle.UnpicklingError(f"{name!r} is not a tensor layout")
    return _LAYOUTS[name]


def _rebuild_plain(rebuild: Any, kind: Any, arguments: tuple[Any, ...], state: Any) -> Any:
    """Rebuild a tensor without its subclass and Python attributes."""
    del kind, state
    return rebuild(*arguments)


def _rebuild_tensor(
    storage: Any, offset: int, size: Any, stride: Any, grad: Any, hooks: Any, *metadata: Any
) -> Tensor:
    """Rebuild a tensor without gradient and hooks."""
    del grad, hooks
    return _torch._utils._rebuild_tensor_v2(storage, offset, size, stride, False, {}, *metadata)


def _rebuild_parameter(data: Tensor, requires_grad: bool, hooks: Any) -> nn.Parameter:
    """Rebuild a parameter without hooks."""
    del hooks
    return nn.Parameter(data, requires_grad)


def is_torchscript(path: Any) -> bool:
    """Whether ``torch.load`` would pass this file to ``torch.jit.load``, which runs its code."""
    with open(path, "rb") as file:  # noqa: PTH123
        if not torch.serialization._is_zipfile(file):
            return False
    with torch.serialization._open_zipfile_reader(str(path)) as reader:
        return torch.serialization._is_torchscript_zip(reader)


def named_in_tensor_files() -> dict[tuple[str, str], Any]:
    """Return the functions for the globals that rebuild tensors in ``torch.save`` files.

    By module and name; None for classes that are only mentioned.
    """
    return {
        ("torch", "Size"): torch.Size,
        ("torch", "Tensor"): None,
        ("torch", "device"): torch.device,
        ("torch.nn.parameter", "Parameter"): None,
        ("torch.serialization", "_get_layout"): _layout,
        ("torch._tensor", "_rebuild_from_type_v2"): _rebuild_plain,
        ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
        ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    }


def named_in_checkpoint_metadata() -> dict[tuple[str, str], Any]:
    """Return the classes in ``torch.distributed.checkpoint`` metadata, by module and name."""
    from torch.distributed.checkpoint import filesystem, metadata

    classes = (
        filesystem._StorageInfo,
        metadata._MEM_FORMAT_ENCODING,
        metadata.BytesStorageMetadata,
        metadata.ChunkStorageMetadata,
        metadata.Metadata,
        metadata.MetadataIndex,
        metadata.StorageMeta,
        metadata.TensorProperties,
        metadata.TensorStorageMetadata,
        torch.Size,
    )
    named: dict[tuple[str, str], Any] = {(c.__module__, c.__qualname__): c for c in classes}
    return named | {("torch.serialization", "_get_layout"): _layout}


def metadata_path(reader: Any, rank: Any) -> Any:
    """Return the path of a ``FileSystemReader``'s metadata."""
    return reader._get_metadata_path(rank)
