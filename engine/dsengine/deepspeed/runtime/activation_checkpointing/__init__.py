"""``from dsengine.runtime.activation_checkpointing import checkpointing``."""

from dsengine.deepspeed.runtime.activation_checkpointing import checkpointing

__all__ = ["checkpointing"]
