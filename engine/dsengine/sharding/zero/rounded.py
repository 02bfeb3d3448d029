"""A whole parameter of 16 bits that has come in fp32: gathered, or one that nothing divides.

Loading a model copies fp32 weights into gathered parameters, as transformers does at stage 3. What
is copied is kept as it came, for masters to begin with; all else happens to the rounded values.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from dsengine.sharding.zero.partitioned import intercepted, keep_fp32_where_unchanged


def _on_both(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    result = func(*args, **kwargs)
    exact = getattr(args[0], "_exact", None) if func is Tensor.copy_ else None
    if exact is not None:
        with torch.no_grad():
            exact.copy_(*args[1:], **kwargs)
    return result


class RoundedParameter(nn.Parameter):
    """Made by ``round_parameter`` from an ordinary Parameter; stays the same object."""

    _exact: Tensor | None = None

    __torch_function__ = intercepted(_on_both)


def round_parameter(parameter: nn.Parameter, dtype: torch.dtype) -> None:
    """Give ``parameter`` its values rounded; what is copied into it goes to the exact ones too.

    Its data until now are the exact ones, which stay those that the caller holds.
    """
    restore_exact(parameter)
    exact = parameter.data
    parameter.data = exact.to(dtype)
    cast(Any, parameter).__class__ = RoundedParameter
    cast(RoundedParameter, parameter)._exact = exact


def drop_rounding(parameter: nn.Parameter) -> None:
    """Make it an ordinary Parameter again."""
    if isinstance(parameter, RoundedParameter):
        parameter._exact = None
        cast(Any, parameter).__class__ = nn.Parameter


def restore_exact(parameter: nn.Parameter) -> None:
    """Make it an ordinary Parameter again, as exact as it has come."""
    if isinstance(parameter, RoundedParameter):
        exact, rounded = parameter._exact, parameter.data
        drop_rounding(parameter)
        if exact is not None:
            parameter.data = keep_fp32_where_unchanged(exact.to(rounded.device), rounded)
