"""bfloat16 training."""

from dsconfig.schema.declare import TRAINER, Block, key
from dsconfig.schema.types import OrAuto


class BF16(Block, since="0.6.0", closed="0.17.1"):
    """bfloat16 training; the old top-level name bfloat16 is read only when bf16 is absent or null."""

    enabled: OrAuto[bool] = key(False, "Trains in bfloat16; excludes fp16.", auto=TRAINER)
    immediate_grad_update: bool = key(
        False,
        "BF16 optimizer folds each gradient into the fp32 accumulator during backward.",
        since="0.13.3",
        was={"0.16.5": False, "0.17.1": True},
    )
    check_grad_overflow: bool = key(
        True,
        "Looks for inf/nan gradients and skips such steps.",
        since="0.17.1",
        was={"0.19.3": False},
    )
    bf16_master_weights_and_grads: bool = key(
        False, "Keeps master weights and gradients in bf16; needs ZeRO 1, 2 or 3.", since="0.18.3"
    )
    bf16_optimizer_states: bool = key(
        False,
        "Keeps optimizer moments in bf16; needs bf16_master_weights_and_grads.",
        since="0.18.3",
    )


class BFloat16(BF16, since="0.5.5", closed="0.17.1"):
    """The bf16 block under its former name."""
