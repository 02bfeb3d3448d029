"""Calls that come at the wrong time, or with what cannot be. DeepSpeed asserts that they do not."""


class MisuseError(RuntimeError, AssertionError):
    """A call that cannot be answered now; an AssertionError too, which DeepSpeed raises there."""


class ArgumentError(ValueError, AssertionError):
    """A call that cannot be answered for what it was given; DeepSpeed raises AssertionError."""
