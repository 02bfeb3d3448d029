"""A Parameter of which each rank holds one piece, and which is whole whenever it is touched.

[Note: whole when touched]
Constructors do more with a weight than create it: parents initialise their children's weights,
``apply`` walks over the finished tree, weights are tied, scaled, copied. Under ``zero.Init`` all
of that finds parameters that are divided already. So any operation on one gathers it first,
runs, and, when it wrote to it, takes rank 0's result and divides it again. What such an operation
returns may share memory with the gathered weight (``.data``, ``.detach()``, a view); that is an
``Alias``, through which writes find their way back. Shapes and dtypes are answered without
gathering. Every rank must do the same, as it does when it builds the same model.

[Note: pieces keep_fp32_where_unchanged than what they show]
Under a config of 16 bits a finished model shows the dtype in which it is going to compute, and
the pieces stay what the model was built with: masters begin with those. A read gives the values
rounded. Of what is written, an element that is given the value it shows stays as exact as it was.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from dsengine.parameters.chunks import chunk_of, gather_chunks, group_for
from dsengine.parameters.shards import is_indivisible
from dsengine.sharding.zero.status import clear_partitioned_attributes, set_partitioned_attributes
from dsengine.torch_private import backward_hooks_of, plain_tensors, storage_key, version_of

_T: Any = torch.Tensor
SHAPE_QUESTIONS = {
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
"""Answered by a meta tensor of the whole shape."""

PLAIN_QUESTIONS = {
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
"""Answered by the empty tensor that stands in the parameter's place."""


def intercepted(answer: Callable[[Callable[..., Any], Any, Any], Any]) -> Any:
    """A ``__torch_function__`` by which ``answer(func, args, kwargs)`` does what is asked."""

    def __torch_function__(
        cls: type, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del cls, types
        with plain_tensors():
            return answer(func, args, kwargs or {})

    return classmethod(__torch_function__)


def _answer(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run ``func``, which is asked of divided parameters."""
    if func in PLAIN_QUESTIONS:
        return func(*args, **kwargs)
    if func in SHAPE_QUESTIONS:
        args, kwargs = tree_map_only(PartitionedParameter, lambda p: p._like, (args, kwargs))
        return func(*args, **kwargs)
    if func is _T.__repr__:
        self = args[0]
        return f"PartitionedParameter(shape={tuple(self._like.shape)}, dtype={self.dtype})"
    return _touch(func, args, kwargs)


class PartitionedParameter(nn.Parameter):
    """Made by ``partition`` from an ordinary Parameter; stays the same object."""

    _piece: Tensor
    """Of the dtype that is shown, or keep_fp32_where_unchanged. See the note above."""
    _like: Tensor
    """A meta tensor of the whole shape, and of the dtype that is shown."""

    __torch_function__ = intercepted(_answer)

    def __deepcopy__(self, memo: dict[int, Any]) -> "PartitionedParameter":
        if id(self) not in memo:
            with plain_tensors():
                copy: Any = nn.Parameter(self.data.clone(), self.requires_grad)
                copy.__class__ = PartitionedParameter
                copy._piece, copy._like = self._piece.clone(), self._like
                set_partitioned_attributes(copy, self._like.shape)
            memo[id(self)] = copy
        return memo[id(self)]


def partition(parameter: nn.Parameter, dtype: torch.dtype | None = None) -> None:
    """Keep this rank's piece of rank 0's values and free the rest; collective.

    What has nothing to divide stays whole.
    """
    is_piece_already = isinstance(parameter, PartitionedParameter)
    if is_piece_already or parameter.is_meta or is_indivisible(parameter):
        return
    whole = parameter.data
    if dtype is not None and whole.is_floating_point():
        whole = whole.to(dtype)
    like = torch.empty_like(whole, device="meta")
    piece = _piece_of_first_rank(whole)
    parameter.data = whole.new_empty(0)
    cast(Any, parameter).__class__ = PartitionedParameter
    partitioned = cast(PartitionedParameter, parameter)
    partitioned._piece, partitioned._like = piece, like
    set_partitioned_attributes(parameter, like.shape)


def is_partitioned_parameter(tensor: Tensor) -> bool:
    """Whether ``tensor`` is a parameter of which this rank holds one piece."""
    return isinstance(tensor, PartitionedParameter)


def show_as(parameter: nn.Parameter, dtype: torch.dtype) -> None:
    """Let a divided parameter of floating point be one of ``dtype``; its piece stays."""
    if isinstance(parameter, PartitionedParameter) and parameter.is_floating_point():
        with plain_tensors():
            parameter._like = parameter._like.to(dtype)
            parameter.data = parameter.data.to(dtype)


def keep_fp32_where_unchanged(exact: Tensor, shown: Tensor) -> Tensor:
    """Return ``shown``, with what is in ``exact`` where that rounds to it."""
    if exact.shape != shown.shape:
        return shown.to(exact.dtype)
    return torch.where(exact.to(shown.dtype) == shown, exact, shown.to(exact.dtype))


def gather(parameter: PartitionedParameter) -> Tensor:
    """Return the whole tensor, as exact as its pieces are; collective."""
    with plain_tensors():
        return gather_chunks(parameter._piece, parameter._like.shape, group_for(parameter._piece))


def restore(parameter: PartitionedParameter) -> Tensor:
    """Make it an ordinary, whole Parameter again; collective. Return its data."""
    whole = gather(parameter)
    retire(parameter)
    parameter.data = whole
    return whole


def _take(parameter: PartitionedParameter, current: Tensor) -> None:
    """Keep this rank's piece of what rank 0 has in ``current``."""
    piece = _piece_of_first_rank(current)
    if current.dtype == parameter._like.dtype:  # else the script has cast it
        piece = keep_fp32_where_unchanged(parameter._piece, piece)
    parameter._piece = piece
    parameter._like = torch.empty_like(current, device="meta")


def retire(parameter: PartitionedParameter) -> None:
    """Make it an ordinary, empty Parameter: its piece has gone elsewhere."""
    cast(Any, parameter).__class__ = nn.Parameter
    clear_partitioned_attributes(parameter)
    del parameter._piece, parameter._like


def _piece_of_first_rank(whole: Tensor) -> Tensor:
    whole = whole.contiguous()
    group = group_for(whole)
    dist.broadcast(whole, 0, group=group)
    return chunk_of(whole, dist.get_rank(group), dist.get_world_size(group)).clone()


def _touch(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run ``func`` with every parameter whole, then divide what was written to."""
    leaves = tree_leaves((args, kwargs))
    parameters = list({id(p): p for p in leaves if isinstance(p, PartitionedParameter)}.values())
    aliases = [each for each in leaves if isinstance(each, Alias)]
    with _whole(parameters) as wholes:
        before = [version_of(parameter) for parameter in parameters]
        result = func(*args, **kwargs)
        if torch.is_grad_enabled() and _needs_graph(result):
            raise RuntimeError(
                "a model built under zero.Init was called before dsengine.initialize; call the "
                "engine, or gather the parameters with zero.GatheredParameters first"
            )
        for parameter, whole, version in zip(parameters, wholes, before, strict=True):
            current = parameter.data
            replaced = not _share_memory(current, whole)  # by ``parameter.data = x``
            if replaced or version_of(parameter) != version:
                _take(parameter, current)
        if aliases and (writes(func) or "out" in kwargs):
            for alias in aliases:
                _take(alias._owner, alias._whole)
    owners = list(zip(parameters, wholes, strict=True))
    owners += [(alias._owner, alias._whole) for alias in aliases]
    return tree_map_only(Tensor, lambda t: _aliased(t, owners), result)


@contextmanager
def _whole(parameters: list[PartitionedParameter]) -> Iterator[list[Tensor]]:
    """Yield what lies in them meanwhile: what they show."""
    wholes = [gather(parameter).to(parameter._like.dtype) for parameter in parameters]
    for parameter, whole in zip(parameters, wholes, strict=True):
        parameter.data = whole
    try:
        yield wholes
    finally:
        for parameter, whole in zip(parameters, wholes, strict=True):
            parameter.data = whole.new_empty(0, dtype=parameter._like.dtype)


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
    """A tensor that shares memory with a gathered parameter, which writes must go back to."""

    _owner: PartitionedParameter
    _whole: Tensor

    __torch_function__ = intercepted(_touch)


def _aliased(tensor: Tensor, owners: list[tuple[PartitionedParameter, Tensor]]) -> Tensor:
    """Return ``tensor`` as an Alias when it lies in the memory of a gathered parameter."""
    if isinstance(tensor, (PartitionedParameter, Alias)) or tensor.is_meta:
        return tensor
    for owner, whole in owners:
        if _share_memory(tensor, whole):
            alias = tensor.as_subclass(Alias)
            alias._owner, alias._whole = owner, whole
            return alias
    return tensor


def _share_memory(first: Tensor, second: Tensor) -> bool:
    return storage_key(first) == storage_key(second)
