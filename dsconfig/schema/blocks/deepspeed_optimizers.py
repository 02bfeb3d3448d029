"""Arguments of the optimizers, beside Adam, that DeepSpeed knows by name."""

from typing import Literal

from dsconfig.schema.blocks.optimizer_params import Decaying
from dsconfig.schema.declare import key
from dsconfig.schema.types import Number, OrAbsent, OrAuto, Pair

_TORCH_ADAGRAD, _CPU_ADAGRAD = ("torch.Adagrad",), ("DeepSpeedCPUAdagrad",)


class Adagrad(Decaying):
    """torch's Adagrad, or DeepSpeed's CPU kernel under optimizer offload."""

    lr: OrAuto[Number] = key(0.01, "Base learning rate.")
    eps: OrAuto[Number] = key(1e-10, "Small term added to the denominator.")
    lr_decay: Number = key(
        0, "Learning-rate decay; unknown to the CPU kernel.", taken_by=_TORCH_ADAGRAD
    )
    initial_accumulator_value: Number = key(
        0, "Start of the sum of squares; unknown to the CPU kernel.", taken_by=_TORCH_ADAGRAD
    )
    amsgrad: bool = key(False, "Taken and ignored by the CPU kernel.", taken_by=_CPU_ADAGRAD)
    fp32_optimizer_states: bool = key(
        True, "States of the CPU kernel in fp32.", since="0.5.0", taken_by=_CPU_ADAGRAD
    )
    foreach: bool | None = key(None, "torch's multi-tensor path.", taken_by=_TORCH_ADAGRAD)
    maximize: bool = key(False, "Climbs in place of descending.", taken_by=_TORCH_ADAGRAD)
    differentiable: bool = key(False, "Autograd passes through the step.", taken_by=_TORCH_ADAGRAD)
    fused: bool | None = key(None, "torch's fused kernel.", taken_by=_TORCH_ADAGRAD)


class Lamb(Decaying):
    """Layer-wise adaptive Adam for large batches; needs dynamic loss scaling."""

    betas: OrAuto[Pair] = key([0.9, 0.999], "Decay rates of the first and second moment.")
    eps: OrAuto[Number] = key(1e-08, "Small term added to the denominator.")
    bias_correction: bool = key(True, "Corrects the moments for their start at zero.")
    eps_inside_sqrt: bool = key(False, "Adds eps inside the square root.")
    max_coeff: Number = key(10.0, "Upper bound of the trust ratio.")
    min_coeff: Number = key(0.01, "Lower bound of the trust ratio.")
    amsgrad: bool = key(False, "Refused when true.")


class Lion(Decaying):
    """Sign of the momentum."""

    betas: OrAuto[Pair] = key([0.9, 0.99], "Decay rates of the update and of the momentum.")
    set_grad_none: bool = key(
        True, "Clears gradients to None; an argument of the GPU kernel.", taken_by=("FusedLion",)
    )
    fp32_optimizer_states: bool = key(
        True, "Momentum of the CPU kernel in fp32.", since="0.5.0", taken_by=("DeepSpeedCPULion",)
    )


class Muon(Decaying):
    """Orthogonalised momentum for matrices, Adam for everything else."""

    lr: OrAuto[Number] = key(0.02, "Learning rate of both halves.")
    muon_lr: OrAbsent[Number] = key(None, "Learning rate of the matrices.", since="0.18.3")
    adam_lr: OrAbsent[Number] = key(None, "Learning rate of the rest.", since="0.18.3")
    momentum: Number = key(0.95, "Momentum of the matrices.")
    ns_method: Literal["gram", "standard"] = key("gram", "Newton-Schulz variant.", since="0.19.0")
    per_head_muon: bool = key(
        False, "Orthogonalises attention projections head by head.", since="0.19.8"
    )
    betas: OrAuto[Pair] = key([0.9, 0.95], "Decay rates of the Adam half.")
    eps: OrAuto[Number] = key(1e-10, "Small term of the Adam half.")
    adam_w_mode: bool = key(True, "Decoupled decay in the Adam half.")
    torch_adam: bool = key(False, "Takes torch's Adam for the Adam half.")
    fp32_optimizer_states: bool = key(
        True,
        "Moments of the Adam half in fp32; the CPU kernel reads it.",
        since="0.5.0",
        taken_by=("MuonWithAuxAdam",),
    )
    foreach: bool | None = key(
        None, "torch's multi-tensor path; needs torch_adam.", taken_by=("MuonWithAuxAdam",)
    )


class MuAdam(Decaying):
    """Adam under the maximal-update parametrisation (package mup)."""

    betas: OrAuto[Pair] = key([0.9, 0.999], "Decay rates of the first and second moment.")
    eps: OrAuto[Number] = key(1e-08, "Small term added to the denominator.")
    amsgrad: bool = key(False, "AMSGrad variant.")
    maximize: bool = key(False, "Climbs in place of descending.")
    foreach: bool | None = key(None, "torch's multi-tensor path.")
    capturable: bool = key(False, "Safe in a CUDA graph.")
    differentiable: bool = key(False, "Autograd passes through the step.")
    fused: bool | None = key(None, "torch's fused kernel.")


class MuAdamW(MuAdam):
    """AdamW under the maximal-update parametrisation (package mup)."""


class MuSGD(Decaying):
    """SGD under the maximal-update parametrisation (package mup)."""

    momentum: Number = key(0, "Momentum factor.")
    dampening: Number = key(0, "Dampening of the momentum.")
    nesterov: bool = key(False, "Nesterov momentum.")
    maximize: bool = key(False, "Climbs in place of descending.")
    foreach: bool | None = key(None, "torch's multi-tensor path.")
    differentiable: bool = key(False, "Autograd passes through the step.")
    fused: bool | None = key(None, "torch's fused kernel.")
