"""Bucket sizes: by the hidden-size formulas, capped by the documented bound for the card.

The formulas are those Hugging Face's integrations use (h*h, 0.9*h*h, 10*h elements). The
bound is the 4.5x rule; the share of a card it may take is what its own examples imply:
3.6 GB of 8 GB, so 5e8 elements (9 GB) from 20 GB up.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Source

if TYPE_CHECKING:
    from dsconfig.runtimes.effective import Zero

BLOCK = "zero_optimization"
REDUCE, GATHER = "reduce_bucket_size", "allgather_bucket_size"
PREFETCH = "stage3_prefetch_bucket_size"
PERSIST = "stage3_param_persistence_threshold"
OVERLAP = "overlap_comm"
SUB_GROUP = "sub_group_size"
DEFAULT_BUCKET = 500_000_000
DEFAULT_PREFETCH = 50_000_000
DEFAULT_PERSISTENCE = 100_000
DEFAULT_SUB_GROUP = 1_000_000_000
_SHARE_NUMERATOR, _SHARE_DENOMINATOR = 45, 100


def fill(draft: Draft) -> None:
    """Settle every "auto" among the bucket keys and ``overlap_comm``."""
    stage = draft.value(f"{BLOCK}.stage")
    if draft.is_auto(f"{BLOCK}.{OVERLAP}"):
        overlaps = isinstance(stage, int) and stage >= 1 and (draft.facts.data_parallel or 2) > 1
        rule = "hides communication behind the backward pass"
        alone = "there is nothing to overlap: no sharding, or a single rank"
        draft.fill(f"{BLOCK}.{OVERLAP}", overlaps, Source.DERIVED, rule if overlaps else alone)
    for name in (REDUCE, GATHER):
        _bucket(draft, name)
    _by_width(draft, PREFETCH, DEFAULT_PREFETCH, "9 * hidden_size^2 // 10")
    _by_width(draft, PERSIST, DEFAULT_PERSISTENCE, "10 * hidden_size")
    _sub_group(draft)


def trial(draft: Draft, zero: "Zero") -> "Zero":
    """``zero`` with the sizes that :func:`fill` would choose, for pricing a stage."""
    width = _width(draft)
    largest = cap(draft)
    changes: dict[str, Any] = {}
    for key, field in ((REDUCE, REDUCE), (GATHER, GATHER)):
        if draft.is_auto(f"{BLOCK}.{key}"):
            changes[field] = min(width * width if width else DEFAULT_BUCKET, largest)
    if width and draft.is_auto(f"{BLOCK}.{PREFETCH}"):
        changes["prefetch_bucket_size"] = 9 * width * width // 10
    if width and draft.is_auto(f"{BLOCK}.{PERSIST}"):
        changes["param_persistence_threshold"] = 10 * width
    if not draft.has(f"{BLOCK}.{OVERLAP}"):
        changes["overlap_comm"] = zero.stage == 3
    elif draft.is_auto(f"{BLOCK}.{OVERLAP}"):
        changes["overlap_comm"] = zero.stage >= 1 and (draft.facts.data_parallel or 2) > 1
    return replace(zero, **changes)


def cap(draft: Draft) -> int:
    """The most elements that either bucket may have on this card; the other bucket as it is.

    Solves (reduce + allgather) * 2 bytes * (4.5 with overlap, else 1) <= 45 % of the memory.
    """
    device = draft.facts.device
    if device is None or device.memory_bytes is None:
        return DEFAULT_BUCKET
    halves = 4 if draft.value(f"{BLOCK}.{OVERLAP}") is False else 18
    both = device.memory_bytes * _SHARE_NUMERATOR * 2 // (_SHARE_DENOMINATOR * halves)
    written = [draft.value(f"{BLOCK}.{name}") for name in (REDUCE, GATHER)]
    fixed = [size for size in written if isinstance(size, int) and not isinstance(size, bool)]
    return max(1, both - fixed[0] if len(fixed) == 1 else both // 2)


def _bucket(draft: Draft, name: str) -> None:
    path = f"{BLOCK}.{name}"
    if not draft.is_auto(path):
        return
    width, largest = _width(draft), cap(draft)
    wanted = width * width if width else DEFAULT_BUCKET
    inputs: dict[str, Any] = {"cap": largest}
    if width:
        inputs["hidden_size"] = width
    if wanted > largest:
        rule = "the most that the 4.5x rule allows on this card (45 % of its memory)"
        draft.fill(path, largest, Source.HARDWARE, rule, wanted=wanted, **inputs)
    elif width:
        draft.fill(path, wanted, Source.MODEL, "hidden_size^2 elements", **inputs)
    else:
        rule = "DeepSpeed's default; no model is known to size it by"
        draft.fill(path, wanted, Source.DEFAULT, rule, **inputs)


def _by_width(draft: Draft, name: str, default: int, formula: str) -> None:
    path = f"{BLOCK}.{name}"
    if not draft.is_auto(path):
        return
    width = _width(draft)
    if width is None:
        rule = "DeepSpeed's default; no model is known to size it by"
        draft.fill(path, default, Source.DEFAULT, rule)
        return
    value = 9 * width * width // 10 if name == PREFETCH else 10 * width
    draft.fill(path, value, Source.MODEL, formula, hidden_size=width)


def _sub_group(draft: Draft) -> None:
    path = f"{BLOCK}.{SUB_GROUP}"
    if not draft.is_auto(path):
        return
    if draft.value(f"{BLOCK}.offload_optimizer.device") == "nvme":
        rule = "four fp32 buffers of this size are pinned for NVMe: 1.6 GB a rank, not 16 GB"
        draft.fill(path, DEFAULT_SUB_GROUP // 10, Source.DERIVED, rule)
    else:
        draft.fill(path, DEFAULT_SUB_GROUP, Source.DEFAULT, "DeepSpeed's default")


def _width(draft: Draft) -> int | None:
    return draft.facts.model.hidden_size if draft.facts.model else None
