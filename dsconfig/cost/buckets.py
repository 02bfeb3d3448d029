"""Communication bucket sizes: from the hidden size, capped by the device memory.

The sizes are those of Hugging Face's integrations (h*h, 0.9*h*h, 10*h elements). The cap is the
4.5x rule; the allowed fraction of the device follows its own examples: 3.6 GB of 8 GB, so 5e8
elements (9 GB) from 20 GB up.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dsconfig.facts.facts import Facts
from dsconfig.runtimes.effective import Tier, Zero
from dsconfig.schema import paths

REDUCE, GATHER = paths.REDUCE_BUCKET.name, paths.GATHER_BUCKET.name
PREFETCH, PERSIST = paths.PREFETCH_BUCKET.name, paths.PERSISTENCE_THRESHOLD.name
OVERLAP, SUB_GROUP = paths.OVERLAP_COMM.name, paths.SUB_GROUP_SIZE.name
KEYS = frozenset((REDUCE, GATHER, PREFETCH, PERSIST, OVERLAP, SUB_GROUP))
DEFAULT_BUCKET = 500_000_000
NVME_SUB_GROUP = 100_000_000
"""Four fp32 buffers of this size are pinned for NVMe: 1.6 GB per rank, not 16 GB."""
_SHARE_NUMERATOR, _SHARE_DENOMINATOR = 45, 100

HISTORY = (
    "The 4.5x rule: with overlap_comm, reserve 4.5 times the bytes of both buckets. DeepSpeed "
    "0.3.x allocated that much at stage 2; since 0.4.0, overlap_comm adds one reduce bucket."
)
"""Shown by `dsconfig explain`; an estimate shows only the bytes."""


def bucket_rule_bytes(zero: Zero) -> int:
    """Return the bytes that the published rule reserves for communication; 0 at stage 0.

    (allgather_bucket_size + reduce_bucket_size) x 2 bytes x (4.5 with overlap_comm, else 1). A
    planning bound, never part of a predicted peak.
    """
    if zero.stage == 0:
        return 0
    bucket_bytes = (zero.allgather_bucket_size + zero.reduce_bucket_size) * 2
    return bucket_bytes * 9 // 2 if zero.overlap_comm else bucket_bytes


def most_elements(facts: Facts, written: Sequence[int], *, overlaps: bool) -> int:
    """Return the maximum elements of either bucket on this device; ``written`` are those set, of
    the two.

    Solves (reduce + allgather) * 2 bytes * (4.5 with overlap, else 1) <= 45 % of the memory.
    """
    if facts.device_bytes is None:
        return DEFAULT_BUCKET
    halves = 18 if overlaps else 4
    both = facts.device_bytes * _SHARE_NUMERATOR * 2 // (_SHARE_DENOMINATOR * halves)
    return max(1, both - written[0] if len(written) == 1 else both // 2)


def by_width(width: int) -> dict[str, int]:
    """Return the elements of each size that follows from the hidden size."""
    return {
        REDUCE: width * width,
        GATHER: width * width,
        PREFETCH: 9 * width * width // 10,
        PERSIST: 10 * width,
    }


def overlaps(stage: int, facts: Facts) -> bool:
    """Return whether there is communication to overlap: not without sharding, nor if no other
    rank has the same part of the model."""
    return stage >= 1 and (facts.gradient_ranks or 2) > 1


def with_buckets(
    zero: Zero, facts: Facts, open_keys: Container[str], written: Mapping[str, Any] | None
) -> Zero:
    """Return ``zero`` with the open sizes set; ``written`` is the block of the file, if there is
    one."""
    changes: dict[str, Any] = {}
    if OVERLAP in open_keys:
        changes["overlap_comm"] = overlaps(zero.stage, facts)
    elif written is not None and OVERLAP not in written:
        changes["overlap_comm"] = zero.stage == 3
    written = written or {}
    known = OVERLAP in open_keys or OVERLAP in written
    overlapping = changes.get("overlap_comm", zero.overlap_comm) or not known
    width = facts.width
    sizes = by_width(width) if width else {REDUCE: DEFAULT_BUCKET, GATHER: DEFAULT_BUCKET}
    given = [
        written[name]
        for name in (REDUCE, GATHER)
        if type(written.get(name)) is int and name not in open_keys
    ]
    cap = most_elements(facts, given, overlaps=overlapping)
    for name in (REDUCE, GATHER):
        if name in open_keys:
            changes[name] = min(sizes[name], cap)
    for name in (PREFETCH, PERSIST):
        if name in open_keys and name in sizes:
            changes[name.removeprefix("stage3_")] = sizes[name]
    if SUB_GROUP in open_keys and zero.optimizer_tier is Tier.NVME:
        changes["sub_group_size"] = NVME_SUB_GROUP
    return replace(zero, **changes)
