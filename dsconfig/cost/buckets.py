"""The 4.5x rule for communication buckets: the documented bound, and where it comes from."""

from dsconfig.runtimes.effective import Zero

HISTORY = (
    "The 4.5x rule was literal in DeepSpeed 0.3.x (Sep 2020 to May 2021: two ZeRO-2 buffers of "
    "4.5 x reduce_bucket_size halves) and is false since 0.4.0; kept as a safe bound."
)


def bucket_rule_bytes(zero: Zero) -> int:
    """Bytes that the published rule sets aside for communication; 0 at stage 0.

    (allgather_bucket_size + reduce_bucket_size) x 2 bytes x (4.5 with overlap_comm, else 1).
    It is a bound to plan with, never a part of a predicted peak.
    """
    if zero.stage == 0:
        return 0
    bucket_bytes = (zero.allgather_bucket_size + zero.reduce_bucket_size) * 2
    return bucket_bytes * 9 // 2 if zero.overlap_comm else bucket_bytes
