"""Activation checkpointing, from the config or per function; see ``loop``'s module."""

from dsengine.loop.activation_checkpointing import (
    checkpoint,
    configure,
    every_other_product,
    is_configured,
    non_reentrant_checkpoint,
    reset,
)

__all__ = [
    "checkpoint",
    "configure",
    "every_other_product",
    "is_configured",
    "non_reentrant_checkpoint",
    "reset",
]
