"""bfloat16 training."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import OrAuto


class BF16(Block, since="0.6.0", closed="0.17.1"):
    """bfloat16 training."""

    enabled: OrAuto[bool] = key(
        False,
        "Trains in bfloat16; excludes fp16.",
        memory="2 bytes per weight on the device, fp32 master weights beside them",
        see=("fp16.enabled", "torch_autocast.enabled"),
    )
    immediate_grad_update: bool = key(
        False,
        "Adds each gradient to the fp32 sum while backward runs.",
        since="0.13.3",
        was={"0.16.5": False, "0.17.1": True},
    )
    check_grad_overflow: bool = key(
        True,
        "Skips steps whose gradients are infinite or not a number.",
        since="0.17.1",
        was={"0.19.3": False},
    )
    bf16_master_weights_and_grads: bool = key(
        False,
        "Keeps master weights and gradients in bfloat16; needs ZeRO.",
        since="0.18.3",
        memory="2 bytes less per master weight and per gradient",
        see=("bf16.bf16_optimizer_states",),
    )
    bf16_optimizer_states: bool = key(
        False,
        "Keeps optimizer moments in bfloat16; needs bf16_master_weights_and_grads.",
        since="0.18.3",
        memory="4 bytes less per weight for Adam",
        see=("bf16.bf16_master_weights_and_grads",),
    )


class BFloat16(BF16, since="0.5.5", closed="0.17.1"):
    """The bf16 block under its former name."""
