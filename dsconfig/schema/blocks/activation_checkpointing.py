"""Activation checkpointing."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer


class ActivationCheckpointing(Block):
    """Defaults for deepspeed.checkpointing; no key here turns checkpointing on and unknown keys are ignored."""

    partition_activations: bool = key(False, "Shards saved activations over model-parallel ranks.")
    number_checkpoints: Integer | None = key(
        None, "Number of checkpoints, used to size the contiguous buffers."
    )
    contiguous_memory_optimization: bool = key(
        False,
        "Copies saved activations into one buffer; needs partition_activations and number_checkpoints.",
    )
    synchronize_checkpoint_boundary: bool = key(False, "Device synchronisation at every boundary.")
    profile: bool = key(False, "Times each checkpointed block.")
    cpu_checkpointing: bool = key(
        False, "Moves partitioned activations to the CPU; needs partition_activations."
    )
