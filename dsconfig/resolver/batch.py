"""The batch triple: global = micro * accumulation * data-parallel ranks."""

from dataclasses import dataclass
from typing import Any

from dsconfig.report import Effect
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Source
from dsconfig.source.pointer import ABSENT

GLOBAL = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"
TRIPLE = (GLOBAL, MICRO, STEPS)
_FLAG = {GLOBAL: "--global-batch", MICRO: "--micro-batch", STEPS: "--accumulation"}


@dataclass(frozen=True, slots=True)
class Known:
    """One member that is settled, and by whom."""

    value: int
    source: Source


def fill(draft: Draft) -> None:
    """Solve the triple for whatever is given; contradictions name all three members."""
    written = {path: draft.value(path) for path in TRIPLE}
    if not _well_typed(draft, written):
        return
    known = _known(draft, written)
    ranks = draft.facts.data_parallel
    if ranks is None:
        _without_ranks(draft, written)
        return
    if len(known) == 3:
        _check(draft, known, ranks)
    elif not known or (set(known) == {STEPS} and not draft.is_auto(MICRO)):
        _ask_for_global(draft)
    else:
        _solve(draft, known, ranks)


def _well_typed(draft: Draft, written: dict[str, Any]) -> bool:
    """Strings, floats and booleans are refused as types, not used in arithmetic."""
    sound = True
    for path, value in written.items():
        if value is ABSENT or value is None or value == "auto":
            continue
        if isinstance(value, float) and value.is_integer():
            draft.config[path] = int(value) if value >= 1 else value
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            shown = f"{value!r} is not a count of samples: {path} must be an integer above zero"
            draft.report(
                "DSC250", "batch-type", Effect.REFUSED, path, shown, "write a bare integer"
            )
            sound = False
    return sound


def _known(draft: Draft, written: dict[str, Any]) -> dict[str, Known]:
    """Members of the config, then, where something is open, those of the training run."""
    known = {
        path: Known(draft.value(path), Source.CONFIG) for path in TRIPLE if draft.explicit(path)
    }
    training = draft.facts.training
    if training is None or not _is_open(draft, known):
        return known
    offered = {
        GLOBAL: training.global_batch_size,
        MICRO: training.micro_batch_size,
        STEPS: training.gradient_accumulation_steps,
    }
    for path, value in offered.items():
        if value is not None and path not in known:
            known[path] = Known(value, Source.TRAINING)
    return known


def _is_open(draft: Draft, known: dict[str, Known]) -> bool:
    """True when something is "auto", or the file settles too little by itself."""
    return any(draft.is_auto(path) for path in TRIPLE) or not {GLOBAL, MICRO} & known.keys()


def _without_ranks(draft: Draft, written: dict[str, Any]) -> None:
    """Nothing to do for a file that is settled; else the number of ranks is missing."""
    for path in TRIPLE:
        if draft.is_auto(path):
            message = f"{path} depends on the number of data-parallel ranks, which is unknown"
            draft.missing(path, message, "give --gpus")


def _ask_for_global(draft: Draft) -> None:
    path = next((path for path in TRIPLE if draft.is_auto(path)), "")
    draft.missing(
        path,
        "nothing says how many samples make one optimizer step, so the batch cannot be split",
        "give --global-batch (with --micro-batch if you know what fits), or --training-args",
    )


def _check(draft: Draft, known: dict[str, Known], ranks: int) -> None:
    total, micro, steps = (known[path].value for path in TRIPLE)
    if total != micro * steps * ranks:
        _contradiction(draft, known, ranks)
        return
    for path in TRIPLE:
        _settle(draft, path, known[path].value, known[path].source, _given(path, known[path]))


def _solve(draft: Draft, known: dict[str, Known], ranks: int) -> None:
    if GLOBAL in known and known[GLOBAL].value % ranks:
        _contradiction(draft, known, ranks)
        return
    if MICRO not in known and not _find_micro(draft, known, ranks):
        return
    if GLOBAL in known:
        total, micro = known[GLOBAL].value, known[MICRO].value
        if total % (micro * ranks):
            _contradiction(draft, known, ranks)
            return
        known[STEPS] = Known(total // (micro * ranks), Source.DERIVED)
    elif STEPS not in known:
        if draft.is_auto(STEPS):
            _ask_for_global(draft)
            return
        known[STEPS] = Known(1, Source.DEFAULT)
    known.setdefault(GLOBAL, Known(known[MICRO].value * known[STEPS].value * ranks, Source.DERIVED))
    for path in TRIPLE:
        _settle(draft, path, known[path].value, known[path].source, _given(path, known[path]))


def _find_micro(draft: Draft, known: dict[str, Known], ranks: int) -> bool:
    """Settle the micro batch; False when it cannot be (a diagnostic then says why)."""
    per_rank = known[GLOBAL].value // ranks if GLOBAL in known else None
    if per_rank is not None and STEPS in known:
        steps = known[STEPS].value
        if per_rank % steps:
            _contradiction(draft, known, ranks)
            return False
        known[MICRO] = Known(per_rank // steps, Source.DERIVED)
        return True
    if per_rank is not None and not draft.is_auto(MICRO) and not draft.is_auto(STEPS):
        # Neither is asked for: what DeepSpeed does with a file that has the product alone.
        known[MICRO] = Known(per_rank, Source.DERIVED)
        return True
    from dsconfig.resolver import micro_batch

    found = micro_batch.largest(draft, MICRO, per_rank)
    if found is None:
        return False
    known[MICRO] = Known(found, Source.MEMORY)
    return True


def _given(path: str, member: Known) -> str:
    if member.source is Source.TRAINING:
        return f"given for the training run ({_FLAG[path]} or --training-args)"
    if member.source is Source.MEMORY:
        return "the largest that fits by the estimate and divides the global batch"
    if member.source is Source.DEFAULT:
        return "one step per pass: no accumulation is asked for"
    other = {
        GLOBAL: "micro batch x accumulation x data-parallel ranks",
        MICRO: "global batch / accumulation / data-parallel ranks",
        STEPS: "global batch / micro batch / data-parallel ranks",
    }
    return other[path]


def _settle(draft: Draft, path: str, value: int, source: Source, rule: str) -> None:
    """Write a member the file left open."""
    if draft.explicit(path):
        return
    inputs: dict[str, Any] = {"data_parallel": draft.facts.data_parallel}
    if source is Source.MEMORY:
        inputs |= draft.searches.get(path, {})
    draft.fill(path, value, source, rule, **inputs)


def _contradiction(draft: Draft, known: dict[str, Known], ranks: int) -> None:
    values = {path: known[path].value if path in known else None for path in TRIPLE}
    total, micro, steps = (values[path] for path in TRIPLE)
    product = (micro or 1) * (steps or 1) * ranks
    shown = ", ".join(
        f"{path} = {value if value is not None else 'open'}" for path, value in values.items()
    )
    facts = draft.facts
    split = facts.tensor_parallel * facts.sequence_parallel * facts.pipeline_parallel
    world = f"{ranks} data-parallel ranks"
    if split > 1:
        world += f" ({facts.world_size} GPUs / {split} for tensor, sequence and pipeline)"
    below, above = (total or 0) // product * product, -(-(total or 0) // product) * product
    near = " or ".join(str(size) for size in (below, above) if size)
    place = next((path for path in TRIPLE if path in known), GLOBAL)
    draft.report(
        "DSC251",
        "batch-contradiction",
        Effect.REFUSED,
        place,
        f"{shown} do not multiply out over {world}: the global batch must be a multiple of "
        f"{product}",
        f'nearest global batch: {near}; or set one of the three to "auto"',
    )
