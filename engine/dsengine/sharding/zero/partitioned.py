"""A Parameter sharded over ranks and gathered whenever it is accessed.

[Note: gathered on access]
Constructors do more with a weight than create it: parents initialize their children's weights,
``apply`` walks the complete tree, weights are tied, scaled, copied. Under ``zero.Init`` all of this
meets parameters that are already partitioned. So every operation on one gathers it first, runs and,
if it wrote, takes rank 0's result and partitions it again. Results may share memory with the
gathered weight (``.data``, ``.detach()``, a view); they are ``Alias`` tensors, whose writes are
propagated back. Shape and dtype queries do not gather. Every rank must run the same operations, as
it does when it builds the same model.

[Note: shards more precise than their dtype]
Under a 16-bit config a complete model reports its compute dtype, while the shards keep the dtype
the model was built with, from which masters are initialized. Reads return rounded values. Writing
an element with its rounded value keeps the precise one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from dsengine.parameters.quantized import is_of_bitsandbytes
from dsengine.parameters.shards import chunk_of, gather_chunks, is_indivisible
from dsengine.sharding.zero.status import clear_partitioned_attributes, set_partitioned_attributes
from dsengine.topology import current
from dsengine.torch_private.tensors import backward_hooks_of, plain_tensors, storage_key, version_of

_T: Any = torch.Tensor
SHAPE_QUERIES = {
    _T.shape.__get__,
    _T.ndim.__get__,
    _T.nbytes.__get__,
    _T.size,
    _T.dim,
    _T.numel,
    _T.nelement,
    _T.stride,
    _T.is_contiguous,
    _T.__len__,
    torch.numel,
}
"""Queries answered by a meta tensor of the full shape."""

PLAIN_QUERIES = {
    _T.dtype.__get__,
    _T.device.__get__,
    _T.layout.__get__,
    _T.is_leaf.__get__,
    _T.is_cuda.__get__,
    _T.is_cpu.__get__,
    _T.is_meta.__get__,
    _T.is_sparse.__get__,
    _T.is_quantized.__get__,
    _T.requires_grad.__get__,
    _T.requires_grad.__set__,
    _T.grad.__get__,
    _T.grad.__set__,
    _T.grad_fn.__get__,
    backward_hooks_of,
    _T.requires_grad_,
    _T.element_size,
    _T.is_floating_point,
    _T.is_complex,
    _T.__hash__,
    torch.is_floating_point,
    torch.is_complex,
}
"""Queries answered by the parameter's own, empty tensor."""


def intercepted(handler: Callable[[Callable[..., Any], Any, Any], Any]) -> Any:
    """Return a ``__torch_function__`` that calls ``handler(func, args, kwargs)``."""

    def __torch_function__(
        cls: type, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del cls, types
        with plain_tensors():
            return handler(func, args, kwargs or {})

    return classmethod(__torch_function__)


def _dispatch(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run ``func`` on partitioned parameters."""
    if func in PLAIN_QUERIES:
        return func(*args, **kwargs)
    if func in SHAPE_QUERIES:
        args, kwargs = tree_map_only(PartitionedParameter, lambda p: p._meta, (args, kwargs))
        return func(*args, **kwargs)
    if func is _T.__repr__:
        self = args[0]
        return f"PartitionedParameter(shape={tuple(self._meta.shape)}, dtype={self.dtype})"
    return _run_gathered(func, args, kwargs)


class PartitionedParameter(nn.Parameter):
    """Made by ``partition`` from an ordinary Parameter; stays the same object."""

    _shard: Tensor
    """In the reported dtype or a more precise one; see the note above."""
    _meta: Tensor
    """A meta tensor of the full shape and the reported dtype."""

    __torch_function__ = intercepted(_dispatch)

    def __deepcopy__(self, memo: dict[int, Any]) -> "PartitionedParameter":
        if id(self) not in memo:
            with plain_tensors():
                copy: Any = nn.Parameter(self.data.clone(), self.requires_grad)
                copy.__class__ = PartitionedParameter
                copy._shard, copy._meta = self._shard.clone(), self._meta
                set_partitioned_attributes(copy, self._meta.shape)
            memo[id(self)] = copy
        return memo[id(self)]


def partition(parameter: nn.Parameter, dtype: torch.dtype | None = None) -> None:
    """Keep this rank's shard of rank 0's values and free the rest. Collective.

    Parameters that cannot be sharded are unchanged, as are weights that bitsandbytes packs.
    """
    is_partitioned = isinstance(parameter, PartitionedParameter)
    is_fixed = is_indivisible(parameter) or is_of_bitsandbytes(parameter)
    if is_partitioned or parameter.is_meta or is_fixed:
        return
    full = parameter.data
    if dtype is not None and full.is_floating_point():
        full = full.to(dtype)
    meta = torch.empty_like(full, device="meta")
    shard = _shard_of_rank_0(full)
    parameter.data = full.new_empty(0)
    cast(Any, parameter).__class__ = PartitionedParameter
    partitioned = cast(PartitionedParameter, parameter)
    partitioned._shard, partitioned._meta = shard, meta
    set_partitioned_attributes(parameter, meta.shape)


def is_partitioned_parameter(tensor: Tensor) -> bool:
    """Whether ``tensor`` is a partitioned parameter."""
    return isinstance(tensor, PartitionedParameter)


def set_dtype(parameter: nn.Parameter, dtype: torch.dtype) -> None:
    """Let a partitioned floating-point parameter report ``dtype``; its shard is unchanged."""
    if isinstance(parameter, PartitionedParameter) and parameter.is_floating_point():
        with plain_tensors():
            parameter._meta = parameter._meta.to(dtype)
            parameter.data = parameter.data.to(dtype)


def keep_fp32_where_unchanged(exact: Tensor, rounded: Tensor) -> Tensor:
    """Return ``rounded`` in ``exact``'s dtype, with ``exact``'s values where they round to it."""
    if exact.shape != rounded.shape:
        return rounded.to(exact.dtype)
    return torch.where(exact.to(rounded.dtype) == rounded, exact, rounded.to(exact.dtype))


def gather(parameter: PartitionedParameter) -> Tensor:
    """Return the full tensor in the shards' precision. Collective."""
    with plain_tensors():
        group = current().group_for(parameter._shard, "all")
        return gather_chunks(parameter._shard, parameter._meta.shape, group)


def restore(parameter: PartitionedParameter) -> Tensor:
    """Turn ``parameter`` into an ordinary full Parameter; return its data. Collective."""
    full = gather(parameter)
    retire(parameter)
    parameter.data = full
    return full


def _repartition(parameter: PartitionedParameter, current: Tensor) -> None:
    """Keep this rank's shard of rank 0's ``current``."""
    shard = _shard_of_rank_0(current)
    if current.dtype == parameter._meta.dtype:  # otherwise the script has cast it
        shard = keep_fp32_where_unchanged(parameter._shard, shard)
    parameter._shard = shard
    parameter._meta = torch.empty_like(current, device="meta")


def retire(parameter: PartitionedParameter) -> None:
    """Turn ``parameter`` into an ordinary empty Parameter."""
    cast(Any, parameter).__class__ = nn.Parameter
    clear_partitioned_attributes(parameter)
    del parameter._shard, parameter._meta


def _shard_of_rank_0(full: Tensor) -> Tensor:
    full = full.contiguous()
    group = current().group_for(full, "all")
    dist.broadcast(full, 0, group=group)
    return chunk_of(full, group.rank(), group.size()).clone()


def _run_gathered(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run ``func`` with every parameter gathered, then repartition those it wrote to."""
    leaves = tree_leaves((args, kwargs))
    parameters = list({id(p): p for p in leaves if isinstance(p, PartitionedParameter)}.values())
    aliases = [leaf for leaf in leaves if isinstance(leaf, Alias)]
    with _gathered(parameters) as tensors:
        before = [version_of(parameter) for parameter in parameters]
        result = func(*args, **kwargs)
        if torch.is_grad_enabled() and _needs_graph(result):
            raise RuntimeError(
                "a model built under zero.Init was called before dsengine.initialize; call the "
                "engine, or gather the parameters with zero.GatheredParameters first"
            )
        for parameter, full, version in zip(parameters, tensors, before, strict=True):
            current = parameter.data
            replaced = not _share_memory(current, full)  # by ``parameter.data = x``
            if replaced or version_of(parameter) != version:
                _repartition(parameter, current)
        if aliases and (writes(func) or "out" in kwargs):
            for alias in aliases:
                _repartition(alias._owner, alias._full)
    owners = list(zip(parameters, tensors, strict=True))
    owners += [(alias._owner, alias._full) for alias in aliases]
    return tree_map_only(Tensor, lambda t: _aliased(t, owners), result)


@contextmanager
def _gathered(parameters: list[PartitionedParameter]) -> Iterator[list[Tensor]]:
    """Gather the parameters inside; yield their data in the reported dtype."""
    tensors = [gather(parameter).to(parameter._meta.dtype) for parameter in parameters]
    for parameter, full in zip(parameters, tensors, strict=True):
        parameter.data = full
    try:
        yield tensors
    finally:
        for parameter, full in zip(parameters, tensors, strict=True):
            parameter.data = full.new_empty(0, dtype=parameter._meta.dtype)


def writes(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name in (
        "__setitem__",
        "__set__",
        "__iadd__",
        "__isub__",
        "__imul__",
        "__itruediv__",
    )


def _needs_graph(result: Any) -> bool:
    return any(
        isinstance(leaf, Tensor) and leaf.requires_grad and leaf.grad_fn is not None
        for leaf in tree_leaves(result)
    )


class Alias(Tensor):
    """A tensor that shares memory with a gathered parameter; writes to it are propagated back."""

    _owner: PartitionedParameter
    _full: Tensor

    __torch_function__ = intercepted(_run_gathered)


def _aliased(tensor: Tensor, owners: list[tuple[PartitionedParameter, Tensor]]) -> Tensor:
    """Return ``tensor`` as an Alias if it shares memory with a gathered parameter."""
    if isinstance(tensor, (PartitionedParameter, Alias)) or tensor.is_meta:
        return tensor
    for owner, full in owners:
        if _share_memory(tensor, full):
            alias = tensor.as_subclass(Alias)
            alias._owner, alias._full = owner, full
            return alias
    return tensor


def _share_memory(first: Tensor, second: Tensor) -> bool:
    return storage_key(first) == storage_key(second)
