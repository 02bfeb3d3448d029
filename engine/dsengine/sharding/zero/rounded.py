"""A full 16-bit parameter with fp32 values: gathered, or one that is not sharded.

Loading a model copies fp32 weights into gathered parameters, as transformers does at stage 3.
Copied values are kept in their own precision to initialize the masters; all other operations use
the rounded values.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from dsengine.sharding.zero.partitioned import intercepted, keep_fp32_where_unchanged


def _copy_to_both(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    result = func(*args, **kwargs)
    exact = getattr(args[0], "_exact", None) if func is Tensor.copy_ else None
    if exact is not None:
        with torch.no_grad():
            exact.copy_(*args[1:], **kwargs)
    return result


class RoundedParameter(nn.Parameter):
    """Made by ``round_parameter`` from an ordinary Parameter; the same object."""

    _exact: Tensor | None = None

    __torch_function__ = intercepted(_copy_to_both)


def round_parameter(parameter: nn.Parameter, dtype: torch.dtype) -> None:
    """Round ``parameter``'s values; copies into it also go to the exact ones.

    The exact values are its previous data, which the caller may hold.
    """
    restore_exact(parameter)
    exact = parameter.data
    parameter.data = exact.to(dtype)
    cast(Any, parameter).__class__ = RoundedParameter
    cast(RoundedParameter, parameter)._exact = exact


def drop_rounding(parameter: nn.Parameter) -> None:
    """Turn it into an ordinary Parameter."""
    if isinstance(parameter, RoundedParameter):
        parameter._exact = None
        cast(Any, parameter).__class__ = nn.Parameter


def restore_exact(parameter: nn.Parameter) -> None:
    """Turn it into an ordinary Parameter with its exact values."""
    if isinstance(parameter, RoundedParameter):
        exact, rounded = parameter._exact, parameter.data
        drop_rounding(parameter)
        if exact is not None:
            parameter.data = keep_fp32_where_unchanged(exact.to(rounded.device), rounded)
