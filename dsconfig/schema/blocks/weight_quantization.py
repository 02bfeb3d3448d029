"""ZeRO-Inference weights."""

from typing import Literal

from dsconfig.schema.declare import REQUIRED, Block, key
from dsconfig.schema.types import Bits, Integer, OrAbsent


class QuantizedInitialization(Block, since="0.10.3"):
    """Settings applied while zero.Init builds the model."""

    num_bits: Bits = key(REQUIRED, "4 or 8. Checked only when a tensor is quantised.")
    group_size: Integer = key(
        REQUIRED,
        "Elements per group; must divide the axis. Checked only when a tensor is quantised.",
    )
    group_dim: Integer = key(
        REQUIRED, "Axis that is grouped. Checked only when a tensor is quantised."
    )
    symmetric: Literal[False] = key(
        REQUIRED, "Must be false. Checked only when a tensor is quantised."
    )


class PostInitQuant(Block, since="0.10.3"):
    """Settings per module keyword, applied after the model is built."""

    num_bits: Bits = key(REQUIRED, "4 or 8. Checked only when a tensor is quantised.")
    group_size: Integer = key(
        REQUIRED,
        "Elements per group; must divide the axis. Checked only when a tensor is quantised.",
    )
    group_dim: Integer = key(
        REQUIRED, "Axis that is grouped. Checked only when a tensor is quantised."
    )
    symmetric: Literal[False] = key(
        REQUIRED, "Must be false. Checked only when a tensor is quantised."
    )


class WeightQuantization(Block, since="0.10.3", closed="0.10.3"):
    """ZeRO-Inference weight quantisation."""

    enabled: bool = key(True, "Turns it on.")
    num_bits: Integer = key(8, "Bits per weight.")
    q_type: Literal["asymmetric", "symmetric"] = key("symmetric", "Symmetric or asymmetric scale.")
    q_groups: Integer = key(1, "Number of groups.")
    quantized_initialization: OrAbsent[QuantizedInitialization] = key(
        None, "Settings applied while zero.Init builds the model."
    )
    post_init_quant: OrAbsent[dict[str, PostInitQuant]] = key(
        None, "Settings per module keyword, applied after the model is built."
    )
