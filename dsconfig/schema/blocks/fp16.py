"""fp16 training with loss scaling."""

from dsconfig.schema.declare import Block, ReadAs, key
from dsconfig.schema.markers import Bounds
from dsconfig.schema.types import Integer, OrAuto, Positive, Scale


class FP16(Block, closed="0.17.1"):
    """fp16 training with loss scaling."""

    enabled: OrAuto[bool] = key(
        False,
        "Train in fp16; cannot be combined with bf16.",
        memory="2 bytes per weight on the device, plus fp32 master weights",
        see=("bf16.enabled", "torch_autocast.enabled"),
    )
    auto_cast: bool = key(False, "Cast floating-point inputs of forward to fp16.", since="0.7.0")

    # Loss scale.
    loss_scale: Scale = key(
        0,
        "Static loss scale; 0: dynamic loss scaling.",
        bounds_was={"0.18.8": Bounds()},
        read_as=ReadAs.LOSS_SCALE,
        see=("fp16.initial_scale_power", "fp16.min_loss_scale"),
    )
    initial_scale_power: Integer = key(
        16, "Initial dynamic loss scale, as a power of 2.", was={"0.8.0": 32}
    )
    loss_scale_window: Positive = key(
        1000,
        "Steps without overflow before the dynamic loss scale doubles.",
        unit="steps",
        bounds_was={"0.19.3": Bounds()},
        read_as=ReadAs.SCALE_INTEGER,
    )
    hysteresis: Integer = key(2, "Overflows before the dynamic loss scale is halved.")
    consecutive_hysteresis: bool = key(
        False, "Refill the hysteresis after each step without overflow.", since="0.9.3"
    )
    min_loss_scale: Positive = key(
        1,
        "Minimum dynamic loss scale; an overflow at the minimum stops training.",
        bounds_was={"0.19.3": Bounds()},
        read_as=ReadAs.SCALE_INTEGER,
    )

    fp16_master_weights_and_grads: bool = key(
        False,
        "Keep master weights and gradients in fp16; requires ZeRO and CPU Adam.",
        since="0.5.0",
        memory="saves 2 bytes of host memory per master weight and per gradient",
    )
