"""Arguments that optimizers share, and those of Adam and AdamW."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Number, OrAbsent, OrAuto, Pair

_KERNELS = ("FusedAdam", "DeepSpeedCPUAdam")
_TORCH = ("torch.Adam", "torch.AdamW")


class OptimizerParams(Block, arguments=True):
    """What every optimizer takes."""

    lr: OrAuto[Number] = key(
        0.001, "Base learning rate; a schedule overrides it.", see=("scheduler",)
    )
    max_grad_norm: OrAbsent[Number] = key(
        None,
        "Refused when the engine builds any optimizer.",
        replaced_by="gradient_clipping",
    )


class Decaying(OptimizerParams):
    """An optimizer that shrinks weights."""

    weight_decay: OrAuto[Number] = key(0.0, "Weight decay factor.")


class AdamW(Decaying):
    """Adam with decoupled weight decay."""

    betas: OrAuto[Pair] = key([0.9, 0.999], "Decay rates of the first and second moment.")
    eps: OrAuto[Number] = key(1e-08, "Small term added to the denominator.")
    bias_correction: bool = key(
        True, "Corrects the moments for their start at zero.", taken_by=_KERNELS
    )
    amsgrad: bool = key(False, "AMSGrad; only torch's Adam has it, DeepSpeed's kernels refuse it.")
    set_grad_none: bool = key(
        True,
        "Clears gradients to None; an argument of the GPU kernel.",
        since="0.3.1",
        taken_by=("FusedAdam",),
    )
    adam_w_mode: bool = key(
        True, "Decoupled decay; false counts with the type Adam alone.", since="0.3.1"
    )
    torch_adam: bool = key(
        False, "Takes torch's Adam or AdamW in place of DeepSpeed's kernel.", since="0.3.1"
    )
    fp32_optimizer_states: bool = key(
        True,
        "Moments of the CPU kernel in fp32; bf16.bf16_optimizer_states forces false.",
        since="0.5.0",
    )
    foreach: bool | None = key(
        None, "torch's multi-tensor path; needs torch_adam.", taken_by=_TORCH
    )
    maximize: bool = key(False, "Climbs in place of descending; needs torch_adam.", taken_by=_TORCH)
    capturable: bool = key(False, "Safe in a CUDA graph; needs torch_adam.", taken_by=_TORCH)
    differentiable: bool = key(
        False, "Autograd passes through the step; needs torch_adam.", taken_by=_TORCH
    )
    fused: bool | None = key(None, "torch's fused kernel; needs torch_adam.", taken_by=_TORCH)


class Adam(AdamW):
    """Adam; decoupled decay (AdamW) unless ``adam_w_mode`` is false."""

    decoupled_weight_decay: bool = key(
        False,
        "Decoupled decay, as in AdamW; of Adam only torch's has it.",
        taken_by=("torch.Adam",),
    )
