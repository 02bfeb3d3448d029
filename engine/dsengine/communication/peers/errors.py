"""The error of a rank that is well, about one that is not."""

import torch.distributed as dist

MARKS = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")
"""Found in the text of errors of the communication that have no class of their own."""


class RankFailedError(RuntimeError):
    """Another rank failed or was killed; the message says which, and why if that is known."""


def is_communication_error(error: BaseException) -> bool:
    """Whether a collective or the store has raised ``error``."""
    if isinstance(error, dist.DistError):
        return True
    return type(error) is RuntimeError and any(mark in str(error) for mark in MARKS)


def stems_from_communication(error: BaseException) -> bool:
    """Whether ``error``, or one that it was raised from, is an error of the communication."""
    seen: BaseException | None = error
    while seen is not None:
        if is_communication_error(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
