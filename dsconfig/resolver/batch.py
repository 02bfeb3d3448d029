"""The batch triple: what file and run say, the micro batch that fits, and what follows."""

from typing import Any

from dsconfig.batch import GLOBAL, KEYS, MICRO, STEPS, Contradiction, Triple, solve
from dsconfig.lazy_imports import lazy_imports
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Source
from dsconfig.resolver.triple import Known, known_members
from dsconfig.source.pointer import ABSENT

with lazy_imports():
    from dsconfig.resolver import micro_batch

_FLAG = {GLOBAL: "--global-batch", MICRO: "--micro-batch", STEPS: "--accumulation"}


def fill(draft: Draft) -> None:
    """Solve the triple for whatever is given; contradictions name all three members."""
    if not _well_typed(draft):
        return
    known = known_members(draft)
    ranks = draft.facts.data_parallel
    if ranks is None:
        _ask_for_ranks(draft)
    elif _lacks_global(draft, known):
        draft.missing(
            next((path for path in KEYS if draft.is_auto(path)), ""),
            "nothing says how many samples make one optimizer step, so the batch cannot be split",
            "give --global-batch (with --micro-batch if you know what fits), or --training-args",
        )
    elif _search_micro(draft, known, ranks):
        _solve(draft, known, ranks)


def _well_typed(draft: Draft) -> bool:
    """Strings, floats and booleans are refused as types, not used in arithmetic."""
    sound = True
    for path in KEYS:
        value = draft.value(path)
        if value is ABSENT or value is None or value == "auto":
            continue
        if isinstance(value, float) and value.is_integer():
            draft.config[path] = int(value) if value >= 1 else value
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            shown = f"{value!r} is not a count of samples: {path} must be an integer above zero"
            draft.report("DSC250", path, shown, "write a bare integer")
            sound = False
    return sound


def _ask_for_ranks(draft: Draft) -> None:
    """Nothing to do for a file that is settled; else the number of ranks is missing."""
    for path in KEYS:
        if draft.is_auto(path):
            message = f"{path} depends on the number of data-parallel ranks, which is unknown"
            draft.missing(path, message, "give --gpus")


def _lacks_global(draft: Draft, known: dict[str, Known]) -> bool:
    """Whether the members that are settled leave a step of any size."""
    if known.keys() <= {STEPS}:
        return not known or not draft.is_auto(MICRO)
    return known.keys() == {MICRO} and draft.is_auto(STEPS)


def _search_micro(draft: Draft, known: dict[str, Known], ranks: int) -> bool:
    """Settle the micro batch by memory where nothing else does; False when none was found."""
    total = known[GLOBAL].value if GLOBAL in known else None
    # With the global batch alone and nothing "auto" DeepSpeed takes it in one pass; so do we.
    in_one_pass = not draft.is_auto(MICRO) and not draft.is_auto(STEPS)
    if MICRO in known or (total is not None and (STEPS in known or in_one_pass or total % ranks)):
        return True
    found = micro_batch.largest(draft, MICRO)
    if found is not None:
        known[MICRO] = Known(found, Source.MEMORY)
    return found is not None


def _solve(draft: Draft, known: dict[str, Known], ranks: int) -> None:
    given = Triple(*(known[path].value if path in known else None for path in KEYS))
    solved = solve(given, ranks)
    if isinstance(solved, Contradiction):
        _report(draft, solved)
        return
    assert solved is not None, "the global or the micro batch is known by now"
    for path, value in zip(KEYS, solved, strict=True):
        if path not in known:
            taken = path == STEPS and GLOBAL not in known
            known[path] = Known(value, Source.DEFAULT if taken else Source.DERIVED)
        if not draft.explicit(path):
            source, inputs = known[path].source, dict[str, Any](data_parallel=ranks)
            if source is Source.MEMORY:
                inputs |= draft.searches.get(path, {})
            draft.fill(path, known[path].value, source, _rule(path, source), **inputs)


def _rule(path: str, source: Source) -> str:
    if source is Source.TRAINING:
        return f"given for the training run ({_FLAG[path]} or --training-args)"
    if source is Source.MEMORY:
        return "the largest that fits by the estimate and divides the global batch"
    if source is Source.DEFAULT:
        return "one step per pass: no accumulation is asked for"
    return _DERIVED[path]


_DERIVED = {
    GLOBAL: "micro batch x accumulation x data-parallel ranks",
    MICRO: "global batch / accumulation / data-parallel ranks",
    STEPS: "global batch / micro batch / data-parallel ranks",
}


def _report(draft: Draft, found: Contradiction) -> None:
    given, facts = found.given, draft.facts
    shown = ", ".join(
        f"{path} = {'open' if value is None else value}"
        for path, value in zip(KEYS, given, strict=True)
    )
    split = facts.tensor_parallel * facts.sequence_parallel * facts.pipeline_parallel
    world = f"{found.ranks} data-parallel ranks"
    if split > 1:
        world += f" ({facts.world_size} GPUs / {split} for tensor, sequence and pipeline)"
    must = "be" if len(given.given) == 3 else "be a multiple of"
    draft.report(
        "DSC251",
        next(iter(given.given)),
        f"{shown} do not multiply out over {world}: the global batch must {must} "
        f"{given.unit(found.ranks)}",
        f"nearest global batch: {' or '.join(map(str, given.nearest(found.ranks)))}; "
        'or set one of the three to "auto"',
    )
