"""Views of fp32 shards in the compute dtype, which modules have as parameters.

[Note: dtype views]
In mixed precision ``fully_shard`` keeps fp32 shards, which the optimizer steps, and casts them when
it gathers. Scripts expect a model's parameters to have its compute dtype: for ``dtype``, which
programs write into config.json, or in GatheredParameters. So at stage 3 modules have another
parameter than the one that is stepped: a shard of the compute dtype without memory. Reads cast the
fp32 shard. Writes go to the fp32 shard; an element written with its rounded value keeps the fp32
one. Gradients and hooks are those of the fp32 shard.

State dict entries refer to the shard too, until their local part is requested:
torch.distributed.checkpoint loads into that, and load_state_dict reads it. From then on the entry
has its own values.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils import swap_tensors
from torch.utils._pytree import tree_leaves, tree_map_only

from dsengine.parameters.shards import local_slice_of
from dsengine.sharding.zero.partitioned import PLAIN_QUERIES, SHAPE_QUERIES, intercepted, writes
from dsengine.torch_private.tensors import as_shard, backward_hooks_of, local_part

_T: Any = torch.Tensor
_OF_THE_SHARD = {
    _T.grad.__get__,
    _T.grad.__set__,
    _T.grad.__delete__,
    _T.requires_grad.__get__,
    _T.requires_grad.__set__,
    _T._version.__get__,
    _T.register_hook,
    _T.register_post_accumulate_grad_hook,
    backward_hooks_of,
}
"""Functions that are run on the shard."""
_OWN = (PLAIN_QUERIES | SHAPE_QUERIES) - _OF_THE_SHARD - {_T.requires_grad_}
_CONVERSIONS = {_T.to, _T.cpu, _T.cuda, _T.half, _T.bfloat16}
"""Functions that return their argument if they change nothing."""
_ALIASES = {_T.detach, _T.detach_, torch.detach, _T.data.__get__}
_REPLACES = {_T.data.__set__, _T.copy_}
"""Functions that replace all values."""


def _dispatch(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run ``func``, which reads or writes a view."""
    self = args[0] if args else None
    if "out" in kwargs or (writes(func) and func not in _ALIASES | _REPLACES):
        return _write_to(kwargs.get("out", self), func, args, kwargs)
    if not isinstance(self, DtypeView):
        return func(*_read(args), **_read(kwargs))
    if func in _OWN:
        return func(*args, **kwargs)
    if func in _OF_THE_SHARD:
        return func(self._shard, *args[1:], **kwargs)
    if func in _ALIASES:
        if self._loaded is not None:
            return func(self._loaded)
        return _empty_view(cast(DTensor, self._shard.detach()), self.dtype)
    if func in _REPLACES:
        write(self, _read(args[1]))
        return self
    if func is _T.__deepcopy__:
        copied = self.computed.detach().clone()
        is_leaf = isinstance(self, nn.Parameter)
        return nn.Parameter(copied, self.requires_grad) if is_leaf else copied
    result = func(*_read(args), **_read(kwargs))
    if func in _CONVERSIONS and not kwargs.get("copy"):
        is_same = result.dtype is self.dtype and result.device == self.device
        return self if is_same else result
    return result


class DtypeView(DTensor):
    """A shard viewed in another dtype; made by ``view_as_dtype``."""

    _shard: DTensor
    _loaded: DTensor | None = None
    """Own values of a detached view, once its local part was requested."""

    __torch_function__ = intercepted(_dispatch)

    @property
    def computed(self) -> DTensor:
        """The shard, cast to the view's dtype."""
        if self._loaded is not None:
            return self._loaded
        return cast(DTensor, self._shard.to(self.dtype))

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return repr(self.computed)

    def to_local(self, **kwargs: Any) -> Tensor:
        """Return a copy of this rank's shard.

        Writes to it change this object only, and have no effect for a parameter.
        """
        if not isinstance(self, nn.Parameter):
            self._loaded = self.computed
        return self.computed.to_local(**kwargs)

    def full_tensor(self, **kwargs: Any) -> Tensor:
        return self.computed.full_tensor(**kwargs)

    def redistribute(self, *args: Any, **kwargs: Any) -> DTensor:
        return self.computed.redistribute(*args, **kwargs)


def view_as_dtype(shard: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    """Return a parameter of ``dtype`` that replaces ``shard`` in a module."""
    view = _empty_view(cast(DTensor, shard), dtype)
    parameter = nn.Parameter(view, shard.requires_grad)
    cast(Any, parameter).__class__ = DtypeView
    vars(parameter).update(vars(view) | vars(shard))
    return parameter


def restore_view(
    parameter: nn.Parameter, current: Tensor, *, shard: nn.Parameter, dtype: torch.dtype
) -> None:
    """Keep ``parameter`` as the view of ``shard`` after a module got ``current`` in its place.

    A cast of the module swaps the view for a copy; it is undone, because the engine sets dtypes.
    Another parameter in its place (``load_state_dict(assign=True)``) is copied to the shard.
    """
    if not isinstance(parameter, DtypeView):
        swap_tensors(parameter, view_as_dtype(shard, dtype))
    elif current is not parameter:
        write(parameter, current)


def shard_of(parameter: Tensor) -> Tensor:
    """Return the shard behind a view, or the parameter itself."""
    return parameter._shard if isinstance(parameter, DtypeView) else parameter


@torch.no_grad()
def write(parameter: Tensor, value: Tensor) -> None:
    """Write ``value``, full or sharded alike, to a master or through a view.

    No communication. An element written with its rounded value keeps the exact one.
    """
    shard = shard_of(parameter)
    if isinstance(parameter, DtypeView):
        parameter._loaded = None
    local = local_part(shard)  # in place, so that its version changes
    if isinstance(shard, DTensor) and not isinstance(value, DTensor):
        value = local_slice_of(value, shard)
    new = local_part(value).to(local.device)
    changed = new != local.to(new.dtype)
    local.copy_(torch.where(changed, new.to(local.dtype), local))


def _empty_view(shard: DTensor, dtype: torch.dtype) -> DtypeView:
    """Return a DTensor shaped like ``shard`` that uses one element's memory and refers to it."""
    local = local_part(shard)
    element = local.new_full((), float("nan"), dtype=dtype)  # visible if a read bypasses ``_read``
    view: Any = as_shard(element.expand(local.shape), shard)
    view.__class__ = DtypeView
    view._shard = shard
    return view


def _read(tree: Any) -> Any:
    return tree_map_only(DtypeView, lambda view: view.computed, tree)


def _write_to(target: Any, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Call ``func``, which writes to ``target``: its first argument or ``out``, maybe a list.

    The shards are written, with operands of the view's dtype cast to theirs.
    """
    views = [leaf for leaf in tree_leaves(target) if isinstance(leaf, DtypeView)]
    for view in views:
        view._loaded = None
    dtypes = {view.dtype: view._shard.dtype for view in views}

    def operand(value: Any) -> Any:
        if value is target:
            return tree_map_only(DtypeView, shard_of, target)
        return tree_map_only(Tensor, lambda t: t.to(dtypes.get(t.dtype, t.dtype)), _read(value))

    result = func(*map(operand, args), **{name: operand(value) for name, value in kwargs.items()})
    return None if result is None else target
