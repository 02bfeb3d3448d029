"""Arguments of torch.optim optimizers, which DeepSpeed passes through."""

from typing import Any, Literal

from dsconfig.schema.blocks.optimizer_params import Decaying, OptimizerParams
from dsconfig.schema.declare import key
from dsconfig.schema.types import Integer, Number, OrAuto, Pair


class ForEach(Decaying):
    """torch optimizer with a multi-tensor implementation."""

    foreach: bool | None = key(None, "Use the multi-tensor implementation; null: torch decides.")
    maximize: bool = key(False, "Maximize the objective instead of minimizing it.")


class Differentiable(ForEach):
    """torch optimizer with a differentiable step."""

    differentiable: bool = key(False, "Allow autograd through the optimizer step.")


class Capturable(Differentiable):
    """torch optimizer that can be captured in a CUDA graph."""

    capturable: bool = key(False, "Make the step safe to capture in a CUDA graph.")


class ASGD(Capturable):
    """Averaged SGD."""

    lr: OrAuto[Number] = key(0.01, "Base learning rate.")
    lambd: Number = key(0.0001, "Decay term.")
    alpha: Number = key(0.75, "Power of the learning-rate update.")
    t0: Number = key(1_000_000.0, "Step at which averaging starts.", unit="steps")


class Adadelta(Capturable):
    """Adadelta."""

    lr: OrAuto[Number] = key(1.0, "Scaling factor of the update.")
    rho: Number = key(0.9, "Decay rate of the squared gradients.")
    eps: OrAuto[Number] = key(1e-06, "Small term under the root.")


class Adafactor(ForEach):
    """Adam with a factored second moment."""

    lr: OrAuto[Number] = key(0.01, "Base learning rate.")
    beta2_decay: Number = key(-0.8, "Exponent of the decay of the second moment.")
    eps: list[Any] = key([None, 0.001], "Terms for the squared gradient and for the step.")
    d: Number = key(1.0, "Clipping threshold of the update.")


class Adamax(Capturable):
    """Adam with the infinity norm."""

    lr: OrAuto[Number] = key(0.002, "Base learning rate.")
    betas: OrAuto[Pair] = key([0.9, 0.999], "Decay rates of the moments.")
    eps: OrAuto[Number] = key(1e-08, "Small term added to the denominator.")


class LBFGS(OptimizerParams):
    """Limited-memory BFGS; requires a closure, which the engine does not support."""

    lr: OrAuto[Number] = key(1, "Step size.")
    max_iter: Integer = key(20, "Maximum iterations per step.")
    max_eval: Integer | None = key(None, "Maximum function evaluations per step.")
    tolerance_grad: Number = key(1e-07, "Gradient norm at which it stops.")
    tolerance_change: Number = key(1e-09, "Change at which it stops.")
    history_size: Integer = key(100, "Update history size.")
    line_search_fn: Literal["strong_wolfe"] | None = key(None, "Line search.")


class NAdam(Capturable):
    """Adam with Nesterov momentum."""

    lr: OrAuto[Number] = key(0.002, "Base learning rate.")
    betas: OrAuto[Pair] = key([0.9, 0.999], "Decay rates of the moments.")
    eps: OrAuto[Number] = key(1e-08, "Small term added to the denominator.")
    momentum_decay: Number = key(0.004, "Decay of the momentum.")
    decoupled_weight_decay: bool = key(False, "Use decoupled weight decay, as in AdamW.")


class RAdam(Capturable):
    """Rectified Adam."""

    betas: OrAuto[Pair] = key([0.9, 0.999], "Decay rates of the moments.")
    eps: OrAuto[Number] = key(1e-08, "Small term added to the denominator.")
    decoupled_weight_decay: bool = key(False, "Use decoupled weight decay, as in AdamW.")


class RMSprop(Capturable):
    """RMSprop."""

    lr: OrAuto[Number] = key(0.01, "Base learning rate.")
    alpha: Number = key(0.99, "Smoothing of the squared gradients.")
    eps: OrAuto[Number] = key(1e-08, "Small term added to the denominator.")
    momentum: Number = key(0, "Momentum factor.")
    centered: bool = key(False, "Normalize by the centered second moment.")


class Rprop(OptimizerParams):
    """Resilient backpropagation: uses only the sign of the gradient."""

    lr: OrAuto[Number] = key(0.01, "Initial step size.")
    etas: Pair = key([0.5, 1.2], "Factors that shrink and grow the step.")
    step_sizes: Pair = key([1e-06, 50], "Minimum and maximum step size.")
    capturable: bool = key(False, "Make the step safe to capture in a CUDA graph.")
    foreach: bool | None = key(None, "Use the multi-tensor implementation; null: torch decides.")
    maximize: bool = key(False, "Maximize the objective instead of minimizing it.")
    differentiable: bool = key(False, "Allow autograd through the optimizer step.")


class SGD(Differentiable):
    """Stochastic gradient descent."""

    momentum: Number = key(0, "Momentum factor.")
    dampening: Number = key(0, "Dampening of the momentum.")
    nesterov: bool = key(False, "Use Nesterov momentum.")
    fused: bool | None = key(None, "Use torch's fused kernel.")


class SparseAdam(OptimizerParams):
    """Adam for sparse gradients."""

    betas: OrAuto[Pair] = key([0.9, 0.999], "Decay rates of the moments.")
    eps: OrAuto[Number] = key(1e-08, "Small term added to the denominator.")
    maximize: bool = key(False, "Maximize the objective instead of minimizing it.")
