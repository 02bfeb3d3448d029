"""The dtype of the states of DeepSpeed's CPU optimizers.

torch's optimizers and the engine's keep states in the dtype of the parameters. DeepSpeed's keep
them in fp32 for 16-bit parameters, unless ``fp32_optimizer_states`` is false: each step is computed
in fp32, and the parameters are rounded after it. An engine steps fp32 masters, for which it makes
no difference, as in DeepSpeed.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from dsengine.optimizers.gradients import evaluate

NARROW = (torch.float16, torch.bfloat16)


class _Narrow(NamedTuple):
    """A 16-bit parameter with its data and gradient outside of a step."""

    parameter: Tensor
    data: Tensor
    gradient: Tensor


def step_in_fp32(optimizer: Optimizer) -> None:
    """Let ``optimizer`` step 16-bit parameters in fp32, with fp32 states."""
    stepped: list[_Narrow] = []

    @torch.no_grad()
    def widen(source: Optimizer, args: Any, kwargs: Any) -> Any:
        narrow = [p for group in source.param_groups for p in group["params"] if p.dtype in NARROW]
        if not narrow:
            return None
        args, kwargs = _with_closure_called(args, kwargs)
        for param in narrow:
            if param.grad is not None:
                stepped.append(_Narrow(param, param.data, param.grad))
                _replace(param, param.data.float(), param.grad.float())
                for name, state in source.state.get(param, {}).items():
                    if isinstance(state, Tensor) and state.dtype in NARROW:
                        source.state[param][name] = state.float()
        return args, kwargs

    @torch.no_grad()
    def round_back(*_: Any) -> None:
        for entry in stepped:
            entry.data.copy_(entry.parameter.data)
            _replace(entry.parameter, entry.data, entry.gradient)
        stepped.clear()

    optimizer.register_step_pre_hook(widen)
    optimizer.register_step_post_hook(round_back)


def _replace(parameter: Tensor, data: Tensor, gradient: Tensor) -> None:
    parameter.grad = None
    parameter.data = data
    parameter.grad = gradient


def _with_closure_called(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Call the closure, which needs 16-bit parameters, and return ``step``'s new arguments."""
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        return args, kwargs
    loss = evaluate(closure)
    return args[:1], {"closure": lambda: loss}
