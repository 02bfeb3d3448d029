"""Quantised weights for ZeRO-Inference."""

from typing import Literal

from dsconfig.schema.declare import REQUIRED, Block, key
from dsconfig.schema.types import Bits, Integer, OnlyFalse, OrAbsent


class Quantizer(Block, since="0.10.3"):
    """How tensors are quantised; checked when the first one is."""

    num_bits: Bits = key(REQUIRED, "Bits per weight.")
    group_size: Integer = key(REQUIRED, "Elements with one scale; must divide the axis.")
    group_dim: Integer = key(REQUIRED, "Axis that is cut into groups.")
    symmetric: OnlyFalse = key(REQUIRED, "Only the asymmetric range exists.")


class WeightQuantization(Block, since="0.10.3", closed="0.10.3"):
    """Quantised weights for ZeRO-Inference."""

    enabled: bool = key(True, "Turns quantisation on.")
    num_bits: Integer = key(8, "Bits per weight.")
    q_type: Literal["asymmetric", "symmetric"] = key("symmetric", "Kind of range.")
    q_groups: Integer = key(1, "Groups with a scale of their own.")
    quantized_initialization: OrAbsent[Quantizer] = key(
        None, "Applied while zero.Init builds the model."
    )
    post_init_quant: OrAbsent[dict[str, Quantizer]] = key(
        None, "Applied to a built model, by a part of the module's name."
    )
