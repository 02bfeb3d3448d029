"""Arguments of all optimizers, and of Adam and AdamW."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Number, OrAbsent, OrAuto, Pair

_KERNELS = ("FusedAdam", "DeepSpeedCPUAdam")
_TORCH = ("torch.Adam", "torch.AdamW")


class OptimizerParams(Block, arguments=True):
    """Arguments of every optimizer."""

    lr: OrAuto[Number] = key(
        0.001, "Base learning rate; a scheduler overrides it.", see=("scheduler",)
    )
    max_grad_norm: OrAbsent[Number] = key(
        None,
        "DeepSpeed rejects it for every optimizer.",
        replaced_by="gradient_clipping",
    )


class Decaying(OptimizerParams):
    """Optimizer with weight decay."""

    weight_decay: OrAuto[Number] = key(0.0, "Weight decay factor.")


class AdamW(Decaying):
    """Adam with decoupled weight decay."""

    betas: OrAuto[Pair] = key([0.9, 0.999], "Decay rates of the first and second moment.")
    eps: OrAuto[Number] = key(1e-08, "Small term added to the denominator.")
    bias_correction: bool = key(True, "Correct the bias of the moments.", taken_by=_KERNELS)
    amsgrad: bool = key(False, "Use AMSGrad; torch's Adam only, DeepSpeed's kernels reject it.")
    set_grad_none: bool = key(
        True,
        "Set gradients to None; an argument of the GPU kernel.",
        since="0.3.1",
        taken_by=("FusedAdam",),
    )
    adam_w_mode: bool = key(
        True, "Decoupled weight decay; false has an effect only with type Adam.", since="0.3.1"
    )
    torch_adam: bool = key(
        False, "Use torch's Adam or AdamW instead of DeepSpeed's kernel.", since="0.3.1"
    )
    fp32_optimizer_states: bool = key(
        True,
        "Keep the CPU kernel's moments in fp32; bf16.bf16_optimizer_states sets it to false.",
        since="0.5.0",
    )
    foreach: bool | None = key(
        None, "Use torch's multi-tensor implementation; requires torch_adam.", taken_by=_TORCH
    )
    maximize: bool = key(
        False,
        "Maximize the objective instead of minimizing it; requires torch_adam.",
        taken_by=_TORCH,
    )
    capturable: bool = key(
        False,
        "Make the step safe to capture in a CUDA graph; requires torch_adam.",
        taken_by=_TORCH,
    )
    differentiable: bool = key(
        False, "Allow autograd through the optimizer step; requires torch_adam.", taken_by=_TORCH
    )
    fused: bool | None = key(
        None, "Use torch's fused kernel; requires torch_adam.", taken_by=_TORCH
    )


class Adam(AdamW):
    """Adam, with decoupled weight decay (AdamW) unless ``adam_w_mode`` is false."""

    decoupled_weight_decay: bool = key(
        False,
        "Decoupled weight decay, as in AdamW; torch's Adam only.",
        taken_by=("torch.Adam",),
    )
