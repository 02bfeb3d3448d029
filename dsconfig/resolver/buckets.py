"""Bucket sizes that are "auto", each with its reason; ``cost.buckets`` says how large."""

from typing import Any

from dsconfig.cost.buckets import (
    DEFAULT_BUCKET,
    GATHER,
    NVME_SUB_GROUP,
    OVERLAP,
    PERSIST,
    PREFETCH,
    REDUCE,
    SUB_GROUP,
    by_width,
    most_elements,
    overlaps,
)
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Source
from dsconfig.runtimes.settings import default_of

BLOCK = "zero_optimization"
_UNSIZED = "DeepSpeed's default; no model is known to size it by"


def fill(draft: Draft) -> None:
    """Settle every "auto" among the bucket keys and ``overlap_comm``."""
    stage = draft.value(f"{BLOCK}.stage")
    if draft.is_auto(f"{BLOCK}.{OVERLAP}"):
        overlapping = isinstance(stage, int) and overlaps(stage, draft.facts)
        rule = "hides communication behind the backward pass"
        alone = "there is nothing to overlap: no sharding, or a single rank"
        reason = rule if overlapping else alone
        draft.fill(f"{BLOCK}.{OVERLAP}", overlapping, Source.DERIVED, reason)
    width = draft.facts.width
    for name in (REDUCE, GATHER):
        if draft.is_auto(f"{BLOCK}.{name}"):
            _bucket(draft, name, width)
    for name, formula in ((PREFETCH, "9 * hidden_size^2 // 10"), (PERSIST, "10 * hidden_size")):
        path = f"{BLOCK}.{name}"
        if draft.is_auto(path) and width is None:
            draft.fill(path, default_of(path), Source.DEFAULT, _UNSIZED)
        elif draft.is_auto(path) and width is not None:
            draft.fill(path, by_width(width)[name], Source.MODEL, formula, hidden_size=width)
    _sub_group(draft)


def _bucket(draft: Draft, name: str, width: int | None) -> None:
    """By the width of the model, and not beyond the cap; the other bucket stays as it is."""
    path = f"{BLOCK}.{name}"
    written = [draft.value(f"{BLOCK}.{each}") for each in (REDUCE, GATHER)]
    given = [size for size in written if type(size) is int]
    overlapping = draft.value(f"{BLOCK}.{OVERLAP}") is not False
    cap = most_elements(draft.facts, given, overlaps=overlapping)
    wanted = by_width(width)[name] if width else DEFAULT_BUCKET
    inputs: dict[str, Any] = {"cap": cap}
    if width:
        inputs["hidden_size"] = width
    if wanted > cap:
        rule = "the most that the 4.5x rule allows on this card (45 % of its memory)"
        draft.fill(path, cap, Source.HARDWARE, rule, wanted=wanted, **inputs)
    elif width:
        draft.fill(path, wanted, Source.MODEL, "hidden_size^2 elements", **inputs)
    else:
        draft.fill(path, wanted, Source.DEFAULT, _UNSIZED, **inputs)


def _sub_group(draft: Draft) -> None:
    path = f"{BLOCK}.{SUB_GROUP}"
    if not draft.is_auto(path):
        return
    if draft.value(f"{BLOCK}.offload_optimizer.device") == "nvme":
        rule = "four fp32 buffers of this size are pinned for NVMe: 1.6 GB a rank, not 16 GB"
        draft.fill(path, NVME_SUB_GROUP, Source.DERIVED, rule)
    else:
        draft.fill(path, default_of(path), Source.DEFAULT, "DeepSpeed's default")
