"""``from dsengine.runtime.activation_checkpointing import checkpointing``."""

from dsengine.loop import activation_checkpointing as checkpointing

__all__ = ["checkpointing"]
