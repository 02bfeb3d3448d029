"""Errors for invalid calls; AssertionErrors too, as DeepSpeed raises."""


class MisuseError(RuntimeError, AssertionError):
    """The call is invalid in the current state."""


class ArgumentError(ValueError, AssertionError):
    """The call's arguments are invalid."""
