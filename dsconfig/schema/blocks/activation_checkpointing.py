"""Defaults of deepspeed.checkpointing."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, OrAuto


class ActivationCheckpointing(Block):
    """Defaults of deepspeed.checkpointing; the model's own code turns checkpointing on."""

    partition_activations: OrAuto[bool] = key(
        False,
        "Shards saved activations over model-parallel ranks.",
        memory="saved activations divided by the model-parallel degree",
    )
    cpu_checkpointing: bool = key(
        False,
        "Moves sharded activations to host memory; needs partition_activations.",
        memory="saved activations leave the device for host memory",
        see=("activation_checkpointing.partition_activations",),
    )
    contiguous_memory_optimization: bool = key(
        False,
        "Keeps saved activations in one buffer; needs partition_activations"
        " and number_checkpoints.",
        see=(
            "activation_checkpointing.partition_activations",
            "activation_checkpointing.number_checkpoints",
        ),
    )
    number_checkpoints: Integer | None = key(
        None, "Checkpoints in the model; sizes the contiguous buffers."
    )
    synchronize_checkpoint_boundary: bool = key(False, "Waits for the device at each boundary.")
    profile: bool = key(False, "Times each checkpointed block.")
