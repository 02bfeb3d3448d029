"""Resolve bucket sizes that are "auto"; the sizes come from ``cost.buckets``."""

from typing import Any

from dsconfig.cost.buckets import (
    DEFAULT_BUCKET,
    NVME_SUB_GROUP,
    by_width,
    most_elements,
    overlaps,
)
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Source
from dsconfig.runtimes.settings import default_of
from dsconfig.schema import paths
from dsconfig.schema.paths import KeyPath

_UNSIZED = "DeepSpeed's default, because no model is specified"


def fill(draft: Draft) -> None:
    """Resolve "auto" bucket sizes and ``overlap_comm``."""
    stage = draft.given(paths.STAGE)
    if draft.is_auto(paths.OVERLAP_COMM):
        overlapping = isinstance(stage, int) and overlaps(stage, draft.facts)
        reason = "overlaps communication with backward"
        if not overlapping:
            why = "no other rank has these parameters" if stage else "no sharding at stage 0"
            reason = f"no communication to overlap: {why}"
        draft.set(paths.OVERLAP_COMM, overlapping, Source.DERIVED, reason)
    width = draft.facts.width
    for path in (paths.REDUCE_BUCKET, paths.GATHER_BUCKET):
        if draft.is_auto(path):
            _bucket(draft, path, width)
    for path, formula in (
        (paths.PREFETCH_BUCKET, "9 * hidden_size^2 // 10"),
        (paths.PERSISTENCE_THRESHOLD, "10 * hidden_size"),
    ):
        if draft.is_auto(path) and width is None:
            draft.set(path, default_of(path), Source.DEFAULT, _UNSIZED)
        elif draft.is_auto(path) and width is not None:
            draft.set(path, by_width(width)[path.name], Source.MODEL, formula, hidden_size=width)
    _sub_group(draft)


def _bucket(draft: Draft, path: KeyPath, width: int | None) -> None:
    """Size a bucket by hidden_size, capped by the 4.5x rule."""
    written = [draft.given(bucket) for bucket in (paths.REDUCE_BUCKET, paths.GATHER_BUCKET)]
    given = [size for size in written if type(size) is int]
    overlapping = draft.given(paths.OVERLAP_COMM) is not False
    cap = most_elements(draft.facts, given, overlaps=overlapping)
    wanted = by_width(width)[path.name] if width else DEFAULT_BUCKET
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
    path = paths.SUB_GROUP_SIZE
    if not draft.is_auto(path):
        return
    if draft.given(paths.OPTIMIZER_DEVICE) == "nvme":
        rule = "NVMe offload pins four fp32 buffers of this size: 1.6 GB per rank instead of 16 GB"
        draft.set(path, NVME_SUB_GROUP, Source.DERIVED, rule)
    else:
        draft.set(path, default_of(path), Source.DEFAULT, "DeepSpeed's default")
