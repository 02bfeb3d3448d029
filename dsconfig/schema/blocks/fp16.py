"""Half precision with loss scaling."""

from dsconfig.schema.declare import Block, ReadAs, key
from dsconfig.schema.markers import Bounds
from dsconfig.schema.types import Integer, OrAuto, Positive, Scale


class FP16(Block, closed="0.17.1"):
    """Half precision with loss scaling."""

    enabled: OrAuto[bool] = key(
        False,
        "Trains in fp16; excludes bf16.",
        memory="2 bytes per weight on the device, fp32 master weights beside them",
        see=("bf16.enabled", "torch_autocast.enabled"),
    )
    auto_cast: bool = key(False, "Casts float inputs of forward to fp16.", since="0.7.0")

    # Loss scale.
    loss_scale: Scale = key(
        0,
        "Fixed factor on the loss; 0 lets it adapt.",
        bounds_was={"0.18.8": Bounds()},
        read_as=ReadAs.LOSS_SCALE,
        see=("fp16.initial_scale_power", "fp16.min_loss_scale"),
    )
    initial_scale_power: Integer = key(
        16, "The adaptive scale starts at 2 to this power.", was={"0.8.0": 32}
    )
    loss_scale_window: Positive = key(
        1000,
        "Steps without overflow before the adaptive scale doubles.",
        unit="steps",
        bounds_was={"0.19.3": Bounds()},
        read_as=ReadAs.SCALE_INTEGER,
    )
    hysteresis: Integer = key(2, "Overflows before the adaptive scale halves.")
    consecutive_hysteresis: bool = key(
        False, "Counts overflows afresh after each clean step.", since="0.9.3"
    )
    min_loss_scale: Positive = key(
        1,
        "Floor of the adaptive scale; an overflow at the floor ends training.",
        bounds_was={"0.19.3": Bounds()},
        read_as=ReadAs.SCALE_INTEGER,
    )

    fp16_master_weights_and_grads: bool = key(
        False,
        "Keeps master weights and gradients in fp16; needs ZeRO and CPU Adam.",
        since="0.5.0",
        memory="2 bytes less per master weight and per gradient, in host memory",
    )
