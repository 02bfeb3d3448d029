"""Half precision with loss scaling."""

from dsconfig.schema.declare import TRAINER, Block, key
from dsconfig.schema.types import FiniteScale, Integer, OrAuto, Positive


class FP16(Block, closed="0.17.1"):
    """Half precision with loss scaling."""

    enabled: OrAuto[bool] = key(False, "Trains in fp16; excludes bf16.", auto=TRAINER)
    auto_cast: bool = key(False, "Casts float inputs of the forward call to fp16.", since="0.7.0")
    loss_scale: FiniteScale = key(
        0, "Fixed loss scale; 0 picks dynamic scaling. Must be finite and not negative."
    )
    initial_scale_power: Integer = key(
        16, "Dynamic scaling starts at 2 to this power; no bound is checked.", was={"0.8.0": 32}
    )
    loss_scale_window: Positive = key(
        1000,
        "Clean steps before the dynamic scale doubles; must be above 0 while dynamic scaling is on.",
        unit="steps",
    )
    hysteresis: Integer = key(2, "Overflows tolerated before the scale drops; no bound is checked.")
    consecutive_hysteresis: bool = key(
        False, "Refills the hysteresis counter after each clean step.", since="0.9.3"
    )
    min_loss_scale: Positive = key(
        1, "Floor of the dynamic scale; must be above 0 while dynamic scaling is on."
    )
    fp16_master_weights_and_grads: bool = key(
        False,
        "Keeps master weights and gradients in fp16; needs ZeRO with CPU Adam offload.",
        since="0.5.0",
    )
