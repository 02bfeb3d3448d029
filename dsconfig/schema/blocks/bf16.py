"""bfloat16 training."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import OrAuto


class BF16(Block, since="0.6.0", closed="0.17.1"):
    """bfloat16 training."""

    enabled: OrAuto[bool] = key(
        False,
        "Train in bfloat16; cannot be combined with fp16.",
        memory="2 bytes per weight on the device, plus fp32 master weights",
        see=("fp16.enabled", "torch_autocast.enabled"),
    )
    immediate_grad_update: bool = key(
        False,
        "Accumulate each gradient into fp32 during backward.",
        since="0.13.3",
        was={"0.16.5": False, "0.17.1": True},
    )
    check_grad_overflow: bool = key(
        True,
        "Skip steps with infinite or NaN gradients.",
        since="0.17.1",
        was={"0.19.3": False},
    )
    bf16_master_weights_and_grads: bool = key(
        False,
        "Keep master weights and gradients in bfloat16; requires ZeRO.",
        since="0.18.3",
        memory="saves 2 bytes per master weight and per gradient",
        see=("bf16.bf16_optimizer_states",),
    )
    bf16_optimizer_states: bool = key(
        False,
        "Keep optimizer moments in bfloat16; requires bf16_master_weights_and_grads.",
        since="0.18.3",
        memory="saves 4 bytes per weight with Adam",
        see=("bf16.bf16_master_weights_and_grads",),
    )


class BFloat16(BF16, since="0.5.5", closed="0.17.1"):
    """The bf16 block under its former name."""
