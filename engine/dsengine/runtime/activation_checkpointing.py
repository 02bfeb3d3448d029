"""``from dsengine.runtime.activation_checkpointing import checkpointing``."""

from dsengine import activation_checkpointing as checkpointing

__all__ = ["checkpointing"]
