"""The dtype of the states that DeepSpeed's optimizers for the host have.

torch's and the engine's keep them in the dtype of the parameters. DeepSpeed's keep fp32 beside
parameters of 16 bits, unless ``fp32_optimizer_states`` is false: each step is taken in fp32, and
the parameters are rounded after it. Those that an engine steps are fp32 masters: there it makes no
difference, here as in DeepSpeed.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from dsengine.optimizers.gradients import evaluate

NARROW = (torch.float16, torch.bfloat16)


class _Narrow(NamedTuple):
    """A parameter of 16 bits, and what it has outside of a step."""

    parameter: Tensor
    data: Tensor
    gradient: Tensor


def step_in_fp32(optimizer: Optimizer) -> None:
    """Let ``optimizer`` see parameters of 16 bits in fp32 while it steps, and keep states so."""
    stepped: list[_Narrow] = []

    @torch.no_grad()
    def widen(of: Optimizer, args: Any, kwargs: Any) -> Any:
        narrow = [p for group in of.param_groups for p in group["params"] if p.dtype in NARROW]
        if not narrow:
            return None
        args, kwargs = _with_closure_called(args, kwargs)
        for each in narrow:
            if each.grad is not None:
                stepped.append(_Narrow(each, each.data, each.grad))
                _exchange(each, each.data.float(), each.grad.float())
                for name, state in of.state.get(each, {}).items():
                    if isinstance(state, Tensor) and state.dtype in NARROW:
                        of.state[each][name] = state.float()
        return args, kwargs

    @torch.no_grad()
    def round_again(*_: Any) -> None:
        for each in stepped:
            each.data.copy_(each.parameter.data)
            _exchange(each.parameter, each.data, each.gradient)
        stepped.clear()

    optimizer.register_step_pre_hook(widen)
    optimizer.register_step_post_hook(round_again)


def _exchange(parameter: Tensor, data: Tensor, gradient: Tensor) -> None:
    parameter.grad = None
    parameter.data = data
    parameter.grad = gradient


def _with_closure_called(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of ``step`` with the result in the place of a closure, which needs 16 bits."""
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        return args, kwargs
    loss = evaluate(closure)
    return args[:1], {"closure": lambda: loss}
