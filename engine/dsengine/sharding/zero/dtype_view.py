"""What a module shows of a shard that is not of the dtype in which the model computes.

[Note: shown shards]
In mixed precision ``fully_shard`` keeps shards of fp32, which the optimizer steps, and casts them
when it gathers. What scripts ask a model's parameters is about the model that computes: ``dtype``,
which programs write into its config.json, or what GatheredParameters yields. So at stage 3 modules
show another parameter than the one that is stepped: a shard of the compute dtype that takes no
memory. Its values are those of the fp32 shard, cast when they are read. What is written to it goes
to the fp32 shard, where an element that is given the value it shows stays as exact as it was.
Gradients and hooks are those of the fp32 shard.

What a state_dict holds leads to the shard as well, until its local part is asked for: to that
torch.distributed.checkpoint writes what it loads, for load_state_dict to take it from there. So
from then on it has values of its own.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils import swap_tensors
from torch.utils._pytree import tree_leaves, tree_map_only

from dsengine.parameters.shards import local_slice_of
from dsengine.sharding.zero.partitioned import (
    PLAIN_QUESTIONS,
    SHAPE_QUESTIONS,
    intercepted,
    writes,
)
from dsengine.torch_private import as_shard, backward_hooks_of, local_part

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
"""Asked of the shard, and done to it."""
_OWN = (PLAIN_QUESTIONS | SHAPE_QUESTIONS) - _OF_THE_SHARD - {_T.requires_grad_}
_CONVERSIONS = {_T.to, _T.cpu, _T.cuda, _T.half, _T.bfloat16}
"""Where they change nothing, they return what they were asked of."""
_ALIASES = {_T.detach, _T.detach_, torch.detach, _T.data.__get__}
_REPLACES = {_T.data.__set__, _T.copy_}
"""Give new values, whatever the old ones are."""


def _answer(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run ``func``, which is asked of what is shown, or writes to it."""
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
        return _stand_in(cast(DTensor, self._shard.detach()), self.dtype)
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
    """Made by ``view_as_dtype``."""

    _shard: DTensor
    _loaded: DTensor | None = None
    """The values of its own that what was detached has, once its local part was asked for."""

    __torch_function__ = intercepted(_answer)

    @property
    def computed(self) -> DTensor:
        """The shard in the dtype that is shown."""
        if self._loaded is not None:
            return self._loaded
        return cast(DTensor, self._shard.to(self.dtype))

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return repr(self.computed)

    def to_local(self, **kwargs: Any) -> Tensor:
        """Return a copy of this rank's part. What is written to it is seen in this object alone,
        and for a parameter nowhere."""
        if not isinstance(self, nn.Parameter):
            self._loaded = self.computed
        return self.computed.to_local(**kwargs)

    def full_tensor(self, **kwargs: Any) -> Tensor:
        return self.computed.full_tensor(**kwargs)

    def redistribute(self, *args: Any, **kwargs: Any) -> DTensor:
        return self.computed.redistribute(*args, **kwargs)


def view_as_dtype(shard: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    """Return the parameter of ``dtype`` that a module shows in the place of ``shard``."""
    stand_in = _stand_in(cast(DTensor, shard), dtype)
    parameter = nn.Parameter(stand_in, shard.requires_grad)
    cast(Any, parameter).__class__ = DtypeView
    vars(parameter).update(vars(stand_in) | vars(shard))
    return parameter


def restore_view(
    parameter: nn.Parameter, found: Tensor, *, shard: nn.Parameter, dtype: torch.dtype
) -> None:
    """Let ``parameter`` go on being what is shown of ``shard``, where a module has ``found``.

    A cast of the module alone swaps what it shows for a copy: it is undone, for the dtypes are the
    engine's. Another parameter in its place (``load_state_dict(assign=True)``) gives its values.
    """
    if not isinstance(parameter, DtypeView):
        swap_tensors(parameter, view_as_dtype(shard, dtype))
    elif found is not parameter:
        write(parameter, found)


def shard_of(parameter: Tensor) -> Tensor:
    """Return what is stepped of a parameter that a module shows: most often itself."""
    return parameter._shard if isinstance(parameter, DtypeView) else parameter


@torch.no_grad()
def write(parameter: Tensor, value: Tensor) -> None:
    """Let ``value``, whole or divided alike, be that of a master or of what is shown of a shard.

    No communication. An element that is given the value it shows already keeps its own, which
    may be more exact.
    """
    shard = shard_of(parameter)
    if isinstance(parameter, DtypeView):
        parameter._loaded = None
    local = local_part(shard)  # its version tells others of the change
    if isinstance(shard, DTensor) and not isinstance(value, DTensor):
        value = local_slice_of(value, shard)
    given = local_part(value).to(local.device)
    changed = given != local.to(given.dtype)
    local.copy_(torch.where(changed, given.to(local.dtype), local))


def _stand_in(shard: DTensor, dtype: torch.dtype) -> DtypeView:
    """A DTensor shaped as ``shard``, of one element's memory, that leads to it."""
    local = local_part(shard)
    nothing = local.new_full((), float("nan"), dtype=dtype)  # seen where a read goes past ``_read``
    stand_in: Any = as_shard(nothing.expand(local.shape), shard)
    stand_in.__class__ = DtypeView
    stand_in._shard = shard
    return stand_in


def _read(tree: Any) -> Any:
    return tree_map_only(DtypeView, lambda each: each.computed, tree)


def _write_to(place: Any, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Call ``func``, which writes to ``place``: its first argument or ``out``, maybe a list.

    The shards are written to, with operands of the dtype that is shown brought to theirs.
    """
    told = [each for each in tree_leaves(place) if isinstance(each, DtypeView)]
    for each in told:
        each._loaded = None
    dtypes = {each.dtype: each._shard.dtype for each in told}

    def operand(each: Any) -> Any:
        if each is place:
            return tree_map_only(DtypeView, shard_of, place)
        return tree_map_only(Tensor, lambda t: t.to(dtypes.get(t.dtype, t.dtype)), _read(each))

    result = func(*map(operand, args), **{name: operand(each) for name, each in kwargs.items()})
    return None if result is None else place
