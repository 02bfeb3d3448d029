"""Errors of checkpoints, with messages that state what to do."""


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read. Raised on every rank."""


class CheckpointMismatchError(CheckpointError):
    """The checkpoint belongs to another model: the message names the keys that differ."""
