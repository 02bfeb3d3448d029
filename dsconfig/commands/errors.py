"""The one way a command says that it cannot do what was asked."""


class UsageError(Exception):
    """Wrong arguments, or input that cannot be read: exit code 2, one line on stderr."""
