"""Resolve bucket sizes that are "auto"; the sizes come from ``cost.buckets``."""

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
_UNSIZED = "DeepSpeed's default, because no model is specified"


def fill(draft: Draft) -> None:
    """Resolve "auto" bucket sizes and ``overlap_comm``."""
    stage = draft.value(f"{BLOCK}.stage")
    if draft.is_auto(f"{BLOCK}.{OVERLAP}"):
        overlapping = isinstance(stage, int) and overlaps(stage, draft.facts)
        reason = "overlaps communication with backward"
        if not overlapping:
            why = "no other rank has these parameters" if stage else "no sharding at stage 0"
            reason = f"no communication to overlap: {why}"
        draft.set(f"{BLOCK}.{OVERLAP}", overlapping, Source.DERIVED, reason)
    width = draft.facts.width
    for name in (REDUCE, GATHER):
        if draft.is_auto(f"{BLOCK}.{name}"):
            _bucket(draft, name, width)
    for name, formula in ((PREFETCH, "9 * hidden_size^2 // 10"), (PERSIST, "10 * hidden_size")):
        path = f"{BLOCK}.{name}"
        if draft.is_auto(path) and width is None:
            draft.set(path, default_of(path), Source.DEFAULT, _UNSIZED)
        elif draft.is_auto(path) and width is not None:
            draft.set(path, by_width(width)[name], Source.MODEL, formula, hidden_size=width)
    _sub_group(draft)


def _bucket(draft: Draft, name: str, width: int | None) -> None:
    """Size a bucket by hidden_size, capped by the 4.5x rule."""
    path = f"{BLOCK}.{name}"
    written = [draft.value(f"{BLOCK}.{bucket}") for bucket in (REDUCE, GATHER)]
    given = [size for size in written if type(size) is int]
    overlapping = draft.value(f"{BLOCK}.{OVERLAP}") is not False
    cap = most_elements(draft.facts, given, overlaps=overlapping)
    wanted = by_width(width)[name] if width else DEFAULT_BUCKET
    inputs: dict[str, Any] = {"cap": cap}
    if width:
        inputs["hidden_size"] = width
    if wanted > cap:
        rule = "maximum by the 4.5x rule on this GPU (45% of its memory)"
        draft.set(path, cap, Source.HARDWARE, rule, wanted=wanted, **inputs)
    elif width:
        draft.set(path, wanted, Source.MODEL, "hidden_size^2 elements", **inputs)
    else:
        draft.set(path, wanted, Source.DEFAULT, _UNSIZED, **inputs)


def _sub_group(draft: Draft) -> None:
    path = f"{BLOCK}.{SUB_GROUP}"
    if not draft.is_auto(path):
        return
    if draft.value(f"{BLOCK}.offload_optimizer.device") == "nvme":
        rule = "NVMe offload pins four fp32 buffers of this size: 1.6 GB per rank instead of 16 GB"
        draft.set(path, NVME_SUB_GROUP, Source.DERIVED, rule)
    else:
        draft.set(path, default_of(path), Source.DEFAULT, "DeepSpeed's default")
