"""The error that healthy ranks raise when another rank fails."""

import torch.distributed as dist

MARKS = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")
"""Substrings of communication errors that have no class of their own."""


class RankFailedError(RuntimeError):
    """Another rank failed or was killed; the message names it and, if known, the cause."""


def is_communication_error(error: BaseException) -> bool:
    """Whether a collective or the store raised ``error``."""
    if isinstance(error, dist.DistError):
        return True
    return type(error) is RuntimeError and any(mark in str(error) for mark in MARKS)


def stems_from_communication(error: BaseException) -> bool:
    """Whether ``error``, or an error in its chain of causes, is a communication error."""
    link: BaseException | None = error
    while link is not None:
        if is_communication_error(link):
            return True
        link = link.__cause__ or link.__context__
    return False
