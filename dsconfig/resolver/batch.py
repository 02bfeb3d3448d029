"""Batch triple: values from config and training run, the largest micro batch that fits."""

from collections.abc import Container
from typing import Any

from dsconfig.batch import Contradiction, Triple, solve
from dsconfig.facts.naming import named
from dsconfig.lazy_imports import lazy_imports
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Source
from dsconfig.resolver.triple import Known, known_members
from dsconfig.schema.paths import ACCUMULATION, BATCH, GLOBAL_BATCH, MICRO_BATCH, ROOT, KeyPath
from dsconfig.source.pointer import ABSENT

with lazy_imports():
    from dsconfig.resolver import micro_batch


def fill(draft: Draft) -> None:
    """Solve the batch triple; contradictions name all three keys."""
    if not _well_typed(draft):
        return
    known = known_members(draft)
    ranks = draft.facts.data_parallel
    if ranks is None:
        _report_missing_ranks(draft)
    elif _global_is_open(draft, known):
        draft.missing(
            next((path for path in BATCH if draft.is_auto(path)), ROOT),
            "the global batch is not specified, so micro batch and accumulation cannot be derived",
            f"specify {named('global_batch')} (and {named('micro_batch')} if known), or "
            f"{named('training_args')}",
        )
    elif _search_micro(draft, known, ranks):
        _solve(draft, known, ranks)


def _well_typed(draft: Draft) -> bool:
    """Report a member of a wrong type, which is not used in arithmetic; write 8.0 as 8."""
    for path in BATCH:
        value = draft.given(path)
        if value is ABSENT or value is None or value == "auto":
            continue
        if isinstance(value, float) and value.is_integer():
            draft.config[path.name] = int(value) if value >= 1 else value
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            message = f"{path} must be a positive integer, not {value!r}"
            draft.report("DSC251", path, message, "write an integer without quotes")
            return False
    return True


def _report_missing_ranks(draft: Draft) -> None:
    """Report the missing number of ranks for every member that is "auto"."""
    for path in BATCH:
        if draft.is_auto(path):
            message = f"{path} depends on the number of data-parallel ranks, which is not specified"
            draft.missing(path, message, f"specify {named('gpus')}")


def _global_is_open(draft: Draft, known: dict[KeyPath, Known]) -> bool:
    """Return whether the known members do not determine the global batch."""
    if known.keys() <= {ACCUMULATION}:
        return not known or not draft.is_auto(MICRO_BATCH)
    return known.keys() == {MICRO_BATCH} and draft.is_auto(ACCUMULATION)


def _search_micro(draft: Draft, known: dict[KeyPath, Known], ranks: int) -> bool:
    """Choose the micro batch by memory if nothing else determines it; False if none fits."""
    total = known[GLOBAL_BATCH].value if GLOBAL_BATCH in known else None
    # With only the global batch set and nothing "auto", DeepSpeed does not accumulate.
    without_accumulation = not draft.is_auto(MICRO_BATCH) and not draft.is_auto(ACCUMULATION)
    if MICRO_BATCH in known or (
        total is not None and (ACCUMULATION in known or without_accumulation or total % ranks)
    ):
        return True
    found = micro_batch.largest(draft, MICRO_BATCH)
    if found is not None:
        known[MICRO_BATCH] = Known(found, Source.MEMORY)
    return found is not None


def _solve(draft: Draft, known: dict[KeyPath, Known], ranks: int) -> None:
    given = Triple(*(known[path].value if path in known else None for path in BATCH))
    solved = solve(given, ranks, draft.facts.degrees.tensor)
    if isinstance(solved, Contradiction):
        _report(draft, solved)
        return
    assert solved is not None, "the global or the micro batch is known by now"
    before = frozenset(known)
    for path, value in zip(BATCH, solved, strict=True):
        if path not in known:
            is_default = path == ACCUMULATION and GLOBAL_BATCH not in known
            known[path] = Known(value, Source.DEFAULT if is_default else Source.DERIVED)
        if not draft.explicit(path):
            source, inputs = known[path].source, dict[str, Any](data_parallel=ranks)
            if source is Source.MEMORY:
                inputs |= draft.searches.get(path, {})
            draft.set(path, known[path].value, source, _rule(path, source, before), **inputs)


def _rule(path: KeyPath, source: Source, known: Container[KeyPath]) -> str:
    if source is Source.TRAINING:
        return "set for the training run, not in the file"
    if source is Source.MEMORY:
        divides = " and divides the global batch" if GLOBAL_BATCH in known else ""
        return f"largest that fits by the estimate{divides}"
    if source is Source.DEFAULT:
        return "no gradient accumulation requested"
    return _DERIVED[path]


_DERIVED = {
    GLOBAL_BATCH: "micro batch x accumulation x data-parallel ranks",
    MICRO_BATCH: "global batch / accumulation / data-parallel ranks",
    ACCUMULATION: "global batch / micro batch / data-parallel ranks",
}


def _report(draft: Draft, found: Contradiction) -> None:
    given, facts = found.given, draft.facts
    shown = ", ".join(
        f"{path} = {'not set' if value is None else value}"
        for path, value in zip(BATCH, given, strict=True)
    )
    split = facts.degrees.per_sample
    world = f"{found.ranks} data-parallel ranks"
    if split > 1:
        world += (
            f" ({facts.world_size} GPUs / {split} for tensor, sequence and pipeline parallelism)"
        )
    nearest = " or ".join(map(str, given.nearest(found.ranks)))
    must = "be" if len(given.given) == 3 else "be a multiple of"
    draft.report(
        "DSC251",
        next(path for path in BATCH if path.name in given.given),
        f"{shown} are inconsistent with {world}: the global batch must {must} "
        f"{given.unit(found.ranks)}",
        (f"nearest global batch: {nearest}; or " if nearest else "")
        + 'set one of the three to "auto"',
    )
