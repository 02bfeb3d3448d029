"""Every private PyTorch name the engine uses. No other file of dsengine uses any.

Each section states why no public API is enough and what is assumed. ``tests/engine_torch`` checks
the installed torch against every section; run it with a new torch release to list what changed.

Patched for the whole process within a ``with`` block: ``UntypedStorage.resize_``
(``observe_resizes``), ``torch.distributed.get_backend`` and ``torch.cuda.is_available``
(``fake_process_group``). Changed on a model under an engine: a module's parameter table
(``replace_parameter_table``), its ``__deepcopy__`` (``make_copyable``) and the hooks with which
``fully_shard`` swaps shards into state dicts (``remove_state_dict_hooks``). All of these and
``fully_shard`` itself are removed when another ``initialize`` takes the model over
(``remove_fully_shard``).
"""

import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
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
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.utils import _to_kwargs
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from dsengine.loading import gc_disabled

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

_torch = cast(Any, torch)


def load_compiler() -> None:
    """Import what every optimizer of torch imports when it is first used (``torch._dynamo``)."""
    if "torch._dynamo" not in sys.modules:
        with gc_disabled():
            import torch._dynamo as _  # noqa: F401


# Units of fully_shard
#
# Public: how a unit is made, and when it is gathered and reduced. Not public: which parameters a
# unit has, where their shards lie, and their gradients before reduction. An optimizer below the
# device, whole parameters between steps and the piece-wise start of zero.Init need those.


class ShardedParameter:
    """torch's record of one parameter of a unit (``FSDPParam``), as far as the engine goes."""

    __slots__ = ("_record",)

    def __init__(self, record: Any) -> None:
        self._record = record

    @property
    def owners(self) -> list[tuple[nn.Module, str]]:
        """Every module that has the parameter, with its name there; more than one if tied."""
        info = self._record._module_info
        shared = zip(info.shared_modules, info.shared_param_names, strict=True)
        return [(info.module, info.param_name), *shared]

    @property
    def owner(self) -> nn.Module:
        """The module that has the parameter; the first of them where it is tied."""
        return self._record._module_info.module

    @property
    def shard(self) -> nn.Parameter:
        """The DTensor that the optimizer steps; the same object until the shard is replaced."""
        return self._record.sharded_param

    @property
    def whole(self) -> Tensor:
        """The gathered parameter. Valid while the unit is gathered."""
        return self._record.unsharded_param

    @property
    def flat_shard(self) -> Tensor:
        """The memory of this rank's part, flat, padded to the size of the largest."""
        return self._record._sharded_param_data

    @property
    def flat_whole(self) -> Tensor:
        """The memory of the gathered parameter, flat: one padded part for each rank."""
        return self._record.all_gather_outputs[0]

    @property
    def rank(self) -> int:
        """This rank's place among those that divide the parameter."""
        return self._record.mesh_info.shard_mesh_rank

    @property
    def ranks(self) -> int:
        return self._record.mesh_info.shard_mesh_size

    @property
    def is_on_host(self) -> bool:
        return self._record.offload_to_cpu

    @property
    def was_gathered(self) -> bool:
        """Whether there is a ``whole``; it is made by the first gather and stays an object."""
        return hasattr(self._record, "_unsharded_param")

    @property
    def leaves(self) -> list[Tensor]:
        """What gradients may be on: the shard, and the whole parameter where there is one yet."""
        whole = getattr(self._record, "_unsharded_param", None)
        return [self.shard] if whole is None else [self.shard, whole]

    @property
    def has_late_gradient(self) -> bool:
        """Whether a gradient has come in that no reduction has taken."""
        whole = getattr(self._record, "_unsharded_param", None)
        return whole is not None and whole.grad is not None

    def unreduced(self) -> Iterator[Tensor]:
        """Yield what is held of gradients that are not reduced yet, each tensor once.

        A window in another dtype than that of the weights is summed apart; since torch 2.15 in
        ``grad`` itself, and the other name leads there too.
        """
        whole = getattr(self._record, "_unsharded_param", None)
        sums, gradient = self._record.unsharded_accumulated_grad, getattr(whole, "grad", None)
        if sums is not None and sums is not gradient:
            yield sums
        if gradient is not None:
            yield gradient

    def drop_unreduced(self) -> None:
        """Forget the gradients that are not reduced yet."""
        whole = getattr(self._record, "_unsharded_param", None)
        if whole is not None:
            whole.grad = None
        if self._record.unsharded_accumulated_grad is not None:  # since 2.15 it is ``grad``
            self._record.unsharded_accumulated_grad = None

    def replace(self, part: Tensor, *, requires_grad: bool = True) -> None:
        """Let ``part``, this rank's, be the shard from now on, on every module that owns it.

        Before the unit is first gathered: that is when torch settles on dtypes and memory.
        """
        shard = as_shard(part, cast(DTensor, self.shard))
        self._record._setattr_on_modules(nn.Parameter(shard, requires_grad))
        self._record.reset_sharded_param()

    def use_memory(self, flat: Tensor) -> None:
        """Let the shard, still the same object, use the memory ``flat``, which has its values."""
        local = cast(DTensor, self.shard)._local_tensor
        self._record._sharded_param_data = flat
        cast(Any, self.shard)._local_tensor = flat[: local.numel()].view(local.shape)

    @property
    def shown(self) -> nn.Parameter:
        """What modules have where the shard would be: the shard, unless ``show`` was called."""
        return vars(self._record).get("_dsengine_shown", self.shard)

    def show(
        self, shown: nn.Parameter, keep: Callable[[nn.Parameter, Tensor], None] | None = None
    ) -> None:
        """Let modules have ``shown`` wherever they would have the shard; the shard itself ends it.

        torch reads the shard back from a module that was moved, cast or loaded, and finds it there.
        ``keep`` is called, with ``shown`` and with what the module has, before a module gets
        ``shown`` again: a cast swaps ``shown`` itself for a copy.
        """
        record, shard, before = self._record, self.shard, self.shown
        info = record._module_info
        for name in ("_setattr_on_modules", "reset_sharded_param", "_dsengine_shown"):
            vars(record).pop(name, None)
        register, reset = record._setattr_on_modules, record.reset_sharded_param

        def held() -> Any:
            return parameter_table(info.module).get(info.param_name)

        def register_shown(parameter: nn.Parameter, found: Any = shown) -> None:
            if parameter is shard and keep is not None:
                keep(shown, found)
            register(shown if parameter is shard else parameter)

        def reset_shard() -> None:
            found = held()
            register(shard)
            reset()
            register_shown(shard, shown if found is shard else found)

        if shown is not shard:
            record._setattr_on_modules, record.reset_sharded_param = register_shown, reset_shard
            record._dsengine_shown = shown
        if held() is before:
            register(shown)

    def keep_unsharded(self) -> None:
        """Never free the memory of the whole parameter, also while its shard is registered."""
        self._record.free_unsharded_param = lambda: None


def parameter_groups(unit: FSDPModule) -> list[Any]:
    """The groups of parameters that ``unit`` gathers itself."""
    state = unit._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # before torch 2.12 a module had at most one
        group = getattr(state, "_fsdp_param_group", None)
        return [] if group is None else [group]
    return list(groups)


def sharded_parameters(unit: FSDPModule) -> Iterator[ShardedParameter]:
    """Yield what ``unit`` gathers itself, not what units below it do."""
    for group in parameter_groups(unit):
        yield from map(ShardedParameter, group.fsdp_params)


def sharded_parameters_of(units: Iterable[FSDPModule]) -> list[ShardedParameter]:
    """Return the parameters of ``units``, in their order, each once.

    Several modules can be one unit; torch gives each of them all parameters of it.
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
    """Let gathers run beside the CPU's computation; only streams would do that by themselves."""
    root._set_unshard_async_op(True)


def initialize_root(root: FSDPModule) -> None:
    """Let ``root`` be the one that ends a backward, whichever module is called first.

    Public is the first call alone, which makes a module that is called before it a second root.
    """
    cast(Any, root._get_fsdp_state())._lazy_init()


def remove_state_dict_hooks(unit: FSDPModule) -> None:
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
        for record in group.fsdp_params:
            record._post_load_hook_handle.remove()


def reduce_late_gradients(unit: FSDPModule) -> None:
    """Reduce gradients that came in late, and add them to the reduced ones. Collective."""
    for group in parameter_groups(unit):
        group.post_backward()
        group.finalize_backward()
        group._training_state = type(group._training_state).IDLE


def abort_pass(root: FSDPModule) -> None:
    """Let the next forward begin anew after an error has ended a forward or a backward.

    Otherwise torch waits for ever for the end of that backward: it has noted that what completes
    one is queued, and queues it for no later one. Public since torch 2.13.
    """
    if (reset := getattr(root, "reset_iter_state", None)) is not None:
        with _gradients_kept(units_of(cast(nn.Module, root))):
            reset()
        return
    state = cast(Any, root._get_fsdp_state())
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # nothing reads what is let go of here
    state._comm_ctx.all_gather_state = state._comm_ctx.reduce_scatter_state = None
    state._comm_ctx.post_forward_order.clear()
    for each in state._state_ctx.all_states:
        each._modules_to_run_forward.clear()
        each._training_state = type(each._training_state).IDLE
    for unit in units_of(cast(nn.Module, root)):
        for group in parameter_groups(unit):
            _abort_pass_of(group)
    state._state_ctx.iter_forward_root = None
    state._state_ctx.post_backward_final_callback_queued = False


@contextmanager
def _gradients_kept(units: Sequence[FSDPModule]) -> Iterator[None]:
    """Let what is inside drop no gradient; which of them go is for who calls to say.

    The reset does since torch 2.15: those of a window's earlier passes would be lost.
    """
    leaves = [
        leaf
        for each in sharded_parameters_of(units)
        for leaf in each.leaves
        if leaf.grad is not None
    ]
    held = [(leaf, leaf.grad, getattr(leaf, "grad_dtype", None)) for leaf in leaves]
    yield
    for leaf, gradient, dtype in held:
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
    """Bring a forward's inputs to the device, by the function with which ``fully_shard`` does."""
    moved, named = _to_kwargs(args, kwargs, device, False)
    return (moved[0] if moved else ()), (named[0] if named else {})


def reshard_within(unit: FSDPModule, mesh_info: Any = None) -> Any:
    """Reshard ``unit`` after forward over ``mesh_info``, None for its own; return which it is.

    Where units reshard to fewer ranks, ``fully_shard`` makes process groups for each of them. On
    GPUs every one would open communicators, with buffers on the device, of its own.
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
"""Beginnings of the entries by which ``fully_shard`` and this file mark a module."""


def make_copyable(root: nn.Module) -> None:
    """Let ``copy.deepcopy`` of ``root``, or of a module below it, give an ordinary module.

    ``fully_shard`` forbids copies, because a copy of shards would share its bookkeeping. Where
    parameters are whole at rest there is nothing to share: the copy, for EMA, evaluation or
    export, has its own whole parameters and no hooks.
    """
    for module in root.modules():
        module.__dict__["__deepcopy__"] = partial(_ordinary_copy, module)


def _ordinary_kind(module: nn.Module) -> type[nn.Module]:
    """The class that ``fully_shard`` was given."""
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
"""A hook of a module: the module, the table of its kind, its key there."""


def hooks_below(root: nn.Module) -> set[Hook]:
    """Return every hook of ``root`` and of the modules in it."""
    return {
        (ref(module), table, key)
        for module in root.modules()
        for table, hooks in vars(module).items()
        if "_hooks" in table and isinstance(hooks, dict)
        for key in cast(Iterable[int], hooks)
    }


def remove_fully_shard(root: nn.Module, hooks: Iterable[Hook]) -> None:
    """Take ``fully_shard`` off ``root`` and the modules in it, and ``hooks`` off theirs.

    ``fully_shard`` cannot be undone by itself. Its parameters stay where they are, shards or
    gathered ones: who calls puts others in their places.
    """
    for known, table, key in hooks:
        if (module := known()) is not None:
            vars(module)[table].pop(key, None)
    for module in root.modules():
        module.__class__ = _ordinary_kind(module)
        _module_state_mapping.pop(module, None)
        for mark in [each for each in vars(module) if each.startswith(_MARKS)]:
            del vars(module)[mark]
        replace_parameter_table(module, dict(parameter_table(module)))


# DTensor
#
# What makes a DTensor in public (``from_local``, ``distribute_tensor``) brings the part to the
# mesh's device; shards of an offloaded optimizer rest on the host. What reads one in public
# (``to_local``) makes a new tensor, whose version counter nobody else sees.


@torch.no_grad()
def as_shard(part: Tensor, like: DTensor) -> DTensor:
    """Return this rank's ``part`` as a shard divided as ``like`` is, in the same memory."""
    spec = like._spec
    if spec.tensor_meta is None:
        raise ValueError("a shard without shape and dtype divides nothing like it")
    spec = replace(spec, tensor_meta=spec.tensor_meta._replace(dtype=part.dtype))
    return DTensor(part.detach(), spec, requires_grad=False)


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a DTensor, the very tensor that it holds, or the tensor itself."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def shard_slices(like: DTensor) -> tuple[slice, ...]:
    """Return which part of the whole tensor this rank holds, axis by axis."""
    shape, offset = compute_local_shape_and_global_offset(
        like.shape, like.device_mesh, like.placements
    )
    return tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))


# Modules, tensors and autograd


class MoveAwareModule(nn.Module):
    """A module that is told when ``to``, ``cuda``, ``half`` ... go through its tensors.

    Public hooks there are for calls and state dicts only.
    """

    def moving_tensors(self) -> AbstractContextManager[None]:
        """Return the context inside which all tensors of the module are moved or cast."""
        raise NotImplementedError

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        with self.moving_tensors():
            super()._apply(fn, recurse)
        return self


WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")
"""What torch.compile and activation checkpointing put into the names of parameters."""


def persistent_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers of ``module`` itself that belong to its state dict."""
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            yield name, buffer


def children_of(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield each child under each of its names; ``named_children`` leaves repetitions out."""
    for name, child in module._modules.items():
        if child is not None:
            yield name, child


def parameter_table(module: nn.Module) -> dict[str, Any]:
    """What ``module.weight`` is looked up in. No hook is run where a parameter is read.

    Writing here registers nothing: no hook of zero.Init, no ``__setattr__`` of a script's class.
    """
    return module._parameters


def buffer_table(module: nn.Module) -> dict[str, Tensor | None]:
    """Where the buffers of ``module`` itself are. Setting one as an attribute may register it."""
    return module._buffers


def replace_parameter_table(module: nn.Module, table: dict[str, Any]) -> None:
    module.__dict__["_parameters"] = table


def is_functorch_tensor(tensor: Tensor) -> bool:
    """Whether ``torch.func`` computes with ``tensor``: what it calls backward is none of a loss."""
    return _torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def version_of(tensor: Tensor) -> int:
    """How often the tensor, or another one in its memory, was written to."""
    return tensor._version


def preserve_versions(tensors: Sequence[Tensor]) -> AbstractContextManager[None]:
    """Inside, writes to ``tensors`` and what shares their memory are not counted."""
    return cast(Any, torch.autograd)._unsafe_preserve_version_counter(tuple(tensors))


def storage_key(tensor: Tensor | torch.UntypedStorage) -> int:
    """What tensors in the same memory have in common. ``data_ptr`` is 0 for all that is empty."""
    storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else tensor
    return storage._cdata


def is_in_backward() -> bool:
    """Whether this thread is inside a backward."""
    return _torch._C._current_graph_task_id() != -1


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Inside of a backward: call ``callback`` when all gradients of it are there."""
    cast(Any, Variable)._execution_engine.queue_callback(callback)


plain_tensors: Any = _torch._C.DisableTorchFunctionSubclass
"""A context in which a subclass of Tensor meets its operations without ``__torch_function__``.
The public one, ``DisableTorchFunction``, turns modes such as ``torch.device`` off as well."""

backward_hooks_of: Any = _torch.Tensor._backward_hooks.__get__
"""What ``deepcopy`` and pickle ask a parameter for."""

READ_OF_A_VALUE: Any = _torch.ops.aten._local_scalar_dense.default
"""What ``item()`` and ``bool()`` of a tensor run."""


@contextmanager
def observe_resizes(seen: Callable[[torch.UntypedStorage, int], None]) -> Iterator[None]:
    """Inside, call ``seen(storage, bytes before)`` after each resize of a storage in place.

    ``fully_shard`` frees and refills what it gathers that way, which no dispatcher sees.
    """
    original = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        before = storage.nbytes()
        answer = original(storage, size)
        seen(storage, before)
        return answer

    with replaced(torch.UntypedStorage, "resize_", resize_):
        yield


# Multi-tensor operations, which torch exports without types under private names


def foreach_norm(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The 2-norm of each tensor, as a scalar tensor."""
    return list(_torch._foreach_norm(list(tensors), 2.0))


def foreach_mul_(tensors: Sequence[Tensor], factor: float) -> None:
    _torch._foreach_mul_(list(tensors), factor)


def foreach_copy_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its target, casting where their dtypes differ."""
    _torch._foreach_copy_(list(targets), list(sources))


def foreach_lerp(starts: Sequence[Tensor], ends: Sequence[Any], weight: float) -> list[Tensor]:
    """``start + weight (end - start)`` of each pair."""
    return list(_torch._foreach_lerp(list(starts), list(ends), weight))


def foreach_lerp_(starts: Sequence[Tensor], ends: Sequence[Any], weight: float) -> None:
    _torch._foreach_lerp_(list(starts), list(ends), weight)


def foreach_step_by_sign_(
    targets: Sequence[Tensor], directions: Sequence[Tensor], factor: float
) -> None:
    """Add ``factor`` times the sign of each direction to its target; directions are used up."""
    _torch._foreach_sign_(list(directions))
    _torch._foreach_add_(list(targets), list(directions), alpha=factor)


# Process groups
#
# Public: which ranks, which backend by name. Not public: which devices a group serves, the store
# it was started with, the end of a communicator that hangs, a broadcast of many tensors at once,
# what gloo's threads are doing.

all_gather_flat: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Every rank's flat tensor into one. Public, but renamed in 2.13, where the old name warns."""


def supports_device(group: dist.ProcessGroup | None, device: str) -> bool:
    """Whether ``group``, None for all ranks, can move tensors of devices of that type."""
    group = dist.distributed_c10d._get_default_group() if group is None else group
    return torch.device(device) in group._device_types


def default_store() -> Any:
    """The store by which the ranks found each other."""
    return dist.distributed_c10d._get_default_store()


def broadcast_coalesced(tensors: list[Tensor], bytes_at_once: int) -> None:
    """Give every rank the values of rank 0, many tensors in one message."""
    group = dist.distributed_c10d._get_default_group()
    cast(Any, dist)._broadcast_coalesced(group, tensors, bytes_at_once, 0)


def abort_communicators() -> None:
    """Make collectives on an accelerator that wait for a lost rank return with an error."""
    for group in list(dist.distributed_c10d._world.pg_names):
        try:
            group._get_backend(torch.device("cuda")).abort()
        except RuntimeError:  # a group without an accelerator's backend
            continue


GLOO_THREAD = "pt_gloo_runloop"
"""What torch calls the threads that run gloo's collectives, where threads have names (Linux)."""


def arm_reducer(parallel: DistributedDataParallel, loss: Tensor) -> None:
    """Let the coming backward of ``loss`` reduce, whatever the last forward has said.

    In public only a forward, run outside of ``no_sync``, arms it.
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
"""By the dispatcher's name, the public one."""


def collective_of(operation: Any) -> str | None:
    """Return the dispatcher's name of a collective or message, None for other operations."""
    communicates = operation.namespace in ("c10d", "_c10d_functional")
    return operation._opname if communicates else None


# Dry runs
#
# In public, fake tensors are a debugging aid of torch.compile, and there is no fake group.


def fake_tensors() -> "FakeTensorMode":
    """A mode in which tensors have a shape and no values; real ones become fake when used."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def is_fake(tensor: Any) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


@contextmanager
def fake_process_group(rank: int, ranks: int, backend: str) -> Iterator[None]:
    """Inside, a default group whose collectives do nothing, on a machine without a GPU.

    It passes for one of ``backend``: what the engine asks is ``torch.distributed.get_backend``.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        with (
            replaced(dist, "get_backend", lambda *_: backend),
            replaced(torch.cuda, "is_available", lambda: False),
        ):
            yield
    finally:
        dist.destroy_process_group()


@contextmanager
def replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, let ``holder.name`` be ``value``."""
    original = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, original)


# Hooks on an optimizer's step
#
# Public: to add and remove them, and a wrapper that runs them around any function. Not public:
# where they are, to leave them out where one step of the training is many of the optimizer's.


def step_hooks_once(optimizer: Optimizer, step: Callable[[], None]) -> None:
    """Run the hooks on steps of ``optimizer`` around ``step``, and in none of its calls inside."""
    tables: list[dict[int, Any]] = [
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        _global_optimizer_pre_hooks,
        _global_optimizer_post_hooks,
    ]

    def without_hooks(_: Optimizer) -> None:
        held = [dict(table) for table in tables]
        for table in tables:
            table.clear()
        try:
            step()
        finally:
            for table, hooks in zip(tables, held, strict=True):
                table.update(hooks)

    Optimizer.profile_hook_step(without_hooks)(optimizer)


# Files that torch has written, read without running code: what their pickles name


_LAYOUTS = {str(each): each for each in vars(torch).values() if isinstance(each, torch.layout)}


def _layout(name: str) -> torch.layout:
    """Look among layouts alone: whatever else of torch a file named could be called by it."""
    if name not in _LAYOUTS:
        raise pickle.UnpicklingError(f"{name!r} is no layout of a tensor")
    return _LAYOUTS[name]


def _rebuild_plain(rebuild: Any, kind: Any, arguments: tuple[Any, ...], state: Any) -> Any:
    """Rebuild a tensor; a subclass it may have had, and Python attributes, are left out."""
    del kind, state
    return rebuild(*arguments)


def named_in_tensor_files() -> dict[tuple[str, str], Any]:
    """By module and name, what a file of ``torch.save`` rebuilds tensors with."""
    return {
        ("torch", "Size"): torch.Size,
        ("torch", "Tensor"): torch.Tensor,
        ("torch", "device"): torch.device,
        ("torch.nn.parameter", "Parameter"): nn.Parameter,
        ("torch.serialization", "_get_layout"): _layout,
        ("torch._tensor", "_rebuild_from_type_v2"): _rebuild_plain,
        ("torch._utils", "_rebuild_tensor_v2"): _torch._utils._rebuild_tensor_v2,
        ("torch._utils", "_rebuild_parameter"): _torch._utils._rebuild_parameter,
    }


def named_in_checkpoint_metadata() -> dict[tuple[str, str], Any]:
    """By module and name, what the metadata of a ``torch.distributed.checkpoint`` is made of."""
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
    """Where a ``FileSystemReader`` finds its metadata."""
    return reader._get_metadata_path(rank)
