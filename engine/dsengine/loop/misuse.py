"""Calls that come at the wrong time."""


class MisuseError(RuntimeError, AssertionError):
    """A call that cannot be answered now; an AssertionError too, which DeepSpeed raises there."""
