"""Arguments of DeepSpeed's own optimizers other than Adam."""

from typing import Literal

from dsconfig.schema.blocks.optimizer_params import Decaying
from dsconfig.schema.declare import key
from dsconfig.schema.types import Number, OrAbsent, OrAuto, Pair

_TORCH_ADAGRAD, _CPU_ADAGRAD = ("torch.Adagrad",), ("DeepSpeedCPUAdagrad",)


class Adagrad(Decaying):
    """torch's Adagrad, or DeepSpeed's CPU kernel with optimizer offload."""

    lr: OrAuto[Number] = key(0.01, "Base learning rate.")
    eps: OrAuto[Number] = key(1e-10, "Small term added to the denominator.")
    lr_decay: Number = key(
        0, "Learning-rate decay; not supported by the CPU kernel.", taken_by=_TORCH_ADAGRAD
    )
    initial_accumulator_value: Number = key(
        0, "Initial sum of squares; not supported by the CPU kernel.", taken_by=_TORCH_ADAGRAD
    )
    amsgrad: bool = key(False, "Accepted and ignored by the CPU kernel.", taken_by=_CPU_ADAGRAD)
    fp32_optimizer_states: bool = key(
        True, "Keep the states of the CPU kernel in fp32.", since="0.5.0", taken_by=_CPU_ADAGRAD
    )
    foreach: bool | None = key(
        None, "Use torch's multi-tensor implementation.", taken_by=_TORCH_ADAGRAD
    )
    maximize: bool = key(
        False, "Maximize the objective instead of minimizing it.", taken_by=_TORCH_ADAGRAD
    )
    differentiable: bool = key(
        False, "Allow autograd through the optimizer step.", taken_by=_TORCH_ADAGRAD
    )
    fused: bool | None = key(None, "Use torch's fused kernel.", taken_by=_TORCH_ADAGRAD)


class Lamb(Decaying):
    """Layer-wise adaptive Adam for large batches; requires dynamic loss scaling."""

    betas: OrAuto[Pair] = key([0.9, 0.999], "Decay rates of the first and second moment.")
    eps: OrAuto[Number] = key(1e-08, "Small term added to the denominator.")
    bias_correction: bool = key(True, "Correct the bias of the moments.")
    eps_inside_sqrt: bool = key(False, "Add eps inside the square root.")
    max_coeff: Number = key(10.0, "Upper bound of the trust ratio.")
    min_coeff: Number = key(0.01, "Lower bound of the trust ratio.")
    amsgrad: bool = key(False, "DeepSpeed rejects true.")


class Lion(Decaying):
    """Lion: updates by the sign of the momentum."""

    betas: OrAuto[Pair] = key([0.9, 0.99], "Decay rates of the update and of the momentum.")
    set_grad_none: bool = key(
        True, "Set gradients to None; an argument of the GPU kernel.", taken_by=("FusedLion",)
    )
    fp32_optimizer_states: bool = key(
        True,
        "Keep the momentum of the CPU kernel in fp32.",
        since="0.5.0",
        taken_by=("DeepSpeedCPULion",),
    )


class Muon(Decaying):
    """Orthogonalized momentum for matrices, Adam for other parameters."""

    lr: OrAuto[Number] = key(0.02, "Learning rate of both Muon and Adam.")
    muon_lr: OrAbsent[Number] = key(None, "Learning rate of the matrices.", since="0.18.3")
    adam_lr: OrAbsent[Number] = key(None, "Learning rate of the other parameters.", since="0.18.3")
    momentum: Number = key(0.95, "Momentum of the matrices.")
    ns_method: Literal["gram", "standard"] = key("gram", "Newton-Schulz variant.", since="0.19.0")
    per_head_muon: bool = key(
        False, "Orthogonalize attention projections per head.", since="0.19.8"
    )
    betas: OrAuto[Pair] = key([0.9, 0.95], "Decay rates of Adam's moments.")
    eps: OrAuto[Number] = key(1e-10, "Adam's epsilon.")
    adam_w_mode: bool = key(True, "Use decoupled weight decay in Adam.")
    torch_adam: bool = key(False, "Use torch's Adam for the Adam part.")
    fp32_optimizer_states: bool = key(
        True,
        "Keep Adam's moments in fp32; read by the CPU kernel.",
        since="0.5.0",
        taken_by=("MuonWithAuxAdam",),
    )
    foreach: bool | None = key(
        None,
        "Use torch's multi-tensor implementation; requires torch_adam.",
        taken_by=("MuonWithAuxAdam",),
    )


class MuAdam(Decaying):
    """Adam with maximal update parametrization (package mup)."""

    betas: OrAuto[Pair] = key([0.9, 0.999], "Decay rates of the first and second moment.")
    eps: OrAuto[Number] = key(1e-08, "Small term added to the denominator.")
    amsgrad: bool = key(False, "Use the AMSGrad variant.")
    maximize: bool = key(False, "Maximize the objective instead of minimizing it.")
    foreach: bool | None = key(None, "Use torch's multi-tensor implementation.")
    capturable: bool = key(False, "Make the step safe to capture in a CUDA graph.")
    differentiable: bool = key(False, "Allow autograd through the optimizer step.")
    fused: bool | None = key(None, "Use torch's fused kernel.")


class MuAdamW(MuAdam):
    """AdamW with maximal update parametrization (package mup)."""


class MuSGD(Decaying):
    """SGD with maximal update parametrization (package mup)."""

    momentum: Number = key(0, "Momentum factor.")
    dampening: Number = key(0, "Dampening of the momentum.")
    nesterov: bool = key(False, "Use Nesterov momentum.")
    maximize: bool = key(False, "Maximize the objective instead of minimizing it.")
    foreach: bool | None = key(None, "Use torch's multi-tensor implementation.")
    differentiable: bool = key(False, "Allow autograd through the optimizer step.")
    fused: bool | None = key(None, "Use torch's fused kernel.")
