"""A whole parameter of 16 bits that has come finer: gathered, or one that nothing divides.

Loading a model copies fp32 weights into gathered parameters, as transformers does at stage 3. What
is copied is kept as it came, for masters to begin with; all else happens to the rounded values.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from dsengine.sharding.zero.partitioned import finer
from dsengine.torch_private import plain_tensors


class RoundedParameter(nn.Parameter):
    """Made by ``show_rounded`` from an ordinary Parameter; stays the same object."""

    _exact: Tensor | None = None

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        with plain_tensors():
            result = func(*args, **kwargs)
            if func is Tensor.copy_ and isinstance(args[0], RoundedParameter):
                args[0]._follow(*args[1:], **kwargs)
            return result

    @torch.no_grad()
    def _follow(self, *args: Any, **kwargs: Any) -> None:
        if self._exact is not None:
            self._exact.copy_(*args, **kwargs)


def show_rounded(parameter: nn.Parameter, dtype: torch.dtype) -> None:
    """Give ``parameter`` its values rounded; what is copied into it goes to the exact ones too.

    Its data until now are the exact ones, which stay those that the caller holds.
    """
    show_exact(parameter)
    exact = parameter.data
    parameter.data = exact.to(dtype)
    cast(Any, parameter).__class__ = RoundedParameter
    cast(RoundedParameter, parameter)._exact = exact


def show_whole(parameter: nn.Parameter) -> None:
    """Make it an ordinary Parameter again."""
    if isinstance(parameter, RoundedParameter):
        parameter._exact = None
        cast(Any, parameter).__class__ = nn.Parameter


def show_exact(parameter: nn.Parameter) -> None:
    """Make it an ordinary Parameter again, as exact as it has come."""
    if isinstance(parameter, RoundedParameter):
        exact, rounded = parameter._exact, parameter.data
        show_whole(parameter)
        if exact is not None:
            parameter.data = finer(exact.to(rounded.device), rounded)
