"""Host time that ``fully_shard`` spends in each step without an effect.

[Note: costs of hooks]
In each call a hook builds a function that torch.compile skips, and calls that. Ranges for profilers
are entered without one. Each call of a unit walks through its inputs to cast them, even if all have
the dtype, and inspects the signature of the autograd function that reduces the unit. The
constructor of each shard's gradient is skipped by torch.compile too. There is no setting for any
of it. Gathers, reductions and their streams stay torch's.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function, profiler
from torch.distributed.fsdp._fully_shard import (
    _fsdp_common,
    _fsdp_param,
    _fsdp_param_group,
    _fsdp_state,
)
from torch.distributed.tensor import DTensor

_HOOKS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (
        _fsdp_state.FSDPState,
        ("_pre_forward", "_post_forward", "_pre_backward", "_root_post_backward_final_callback"),
    ),
    (_fsdp_param_group.FSDPParamGroup, ("pre_backward", "post_backward")),
)
"""Methods that torch wraps with ``torch._dynamo.disable`` in each call; some since 2.13."""
_NO_RANGE = nullcontext()
_cast_nested_inputs: Any = getattr(_fsdp_state.FSDPState, "_cast_forward_inputs", None)
_apply_with_defaults: Any = vars(Function)["apply"].__func__


@cache
def reduce_hook_costs() -> None:
    """Reduce the host time of ``fully_shard`` in this process. Call it before the first unit."""
    if getattr(torch._dynamo.config, "skip_fsdp_hooks", True):  # before 2.13 it can be off
        for owner, names in _HOOKS:
            for name in names:
                if (hook := getattr(vars(owner)[name], "__wrapped__", None)) is not None:
                    setattr(owner, name, torch._dynamo.disable(hook, reason="fully_shard's hook"))
    cast(Any, _fsdp_param_group).record_function = range_if_profiled
    if _cast_nested_inputs is not None:  # before 2.13 a part of _pre_forward
        cast(Any, _fsdp_state.FSDPState)._cast_forward_inputs = _cast_forward_inputs
    reduction = _fsdp_param_group.RegisterPostBackwardFunction
    cast(Any, reduction).apply = classmethod(_apply_without_defaults)
    if not hasattr(_fsdp_common, "compiled_autograd_enabled"):  # since 2.13
        cast(Any, _fsdp_param)._from_local_no_grad = _as_dtensor


def range_if_profiled(name: str) -> AbstractContextManager[Any]:
    """Return a range for profilers, or one without an effect if no profiler is active."""
    is_active = profiler._is_profiler_enabled or cast(Any, torch).autograd._profiler_enabled()
    return torch.profiler.record_function(name) if is_active else _NO_RANGE


def _cast_forward_inputs(state: Any, args: Any, kwargs: Any) -> Any:
    """Cast a unit's inputs, unless they are tensors and scalars that need no cast."""
    dtype = state._mp_policy.param_dtype
    if all(_needs_no_cast(value, dtype) for value in (*args, *kwargs.values())):
        return args, kwargs
    return _cast_nested_inputs(state, args, kwargs)


def _needs_no_cast(value: Any, dtype: torch.dtype | None) -> bool:
    if isinstance(value, Tensor):
        return value.dtype is dtype or not value.is_floating_point()
    return value is None or isinstance(value, (bool, int, float, str))


def _apply_without_defaults(cls: Any, *args: Any) -> Any:
    """Apply an autograd function whose arguments have no defaults."""
    if torch._C._are_functorch_transforms_active():
        return _apply_with_defaults(cls, *args)
    function: Any = super(Function, cls)
    return function.apply(*args)


def _as_dtensor(local: Tensor, spec: Any) -> DTensor:
    """Return ``local`` as a DTensor. The constructor does nothing but initialize the object."""
    return DTensor.__new__(DTensor, local, spec, requires_grad=local.requires_grad)
