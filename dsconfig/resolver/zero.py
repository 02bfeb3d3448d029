"""Stage and offload targets: the fastest per sample, with the largest batch that fits each."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dsconfig.cost import search
from dsconfig.cost.activations import Recompute
from dsconfig.cost.choices import Choice, choice_of, recomputation_edits
from dsconfig.cost.search import Candidate, Space
from dsconfig.report.sizes import gib
from dsconfig.resolver import sizing
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Source
from dsconfig.resolver.sizing import OPTIMIZER, PARAMETERS, STAGE
from dsconfig.runtimes.effective import TIER_NAMES, Tier


def fill(draft: Draft) -> None:
    """Settle what is "auto" among the three; what the file says is never changed."""
    open_paths = [path for path in sizing.ARRANGEMENT if draft.is_auto(path)]
    space = sizing.space(draft)
    if space is None:
        _ask(draft, open_paths)
        return
    found = search.fastest(space)
    passed = [space.candidate(choice) for choice in found.skipped]
    if found.chosen is not None:
        _write(draft, found.chosen, passed)
    else:
        _nothing_fits(draft, space, open_paths, passed)


def suggested_choice(space: Space) -> str:
    """What the search would choose, were stage and offload targets open; as advice."""
    before = choice_of(space.base, space.facts).recompute
    opened = space.open | search.ARRANGEMENT
    if before is not Recompute.FULL:  # else there is nothing left to recompute
        opened |= {search.RECOMPUTE}
    opened_space = replace(space, open=opened, priced={})
    found = search.fastest(opened_space).chosen
    if found is None:
        return "no stage or offload target holds it: use more or larger devices"
    smallest = opened_space.with_batch(found.choice, space.batches.sizes[0])
    need = gib(smallest.device_bytes)
    steps = space.runtime.instructions(recomputation_edits(found.choice.recompute), {})
    is_new = found.choice.recompute is not before and bool(steps)
    again = f" together with {steps[0]}" if is_new else ""
    if again and found.choice.recompute is Recompute.SELECTIVE:  # of which no file can tell
        again += ', told here by "gradient_checkpointing": "selective" in --training-args,'
    return f"{describe(found.choice)}{again} would hold it ({need})"


def describe(choice: Choice) -> str:
    """``stage 3 with optimizer on cpu and parameters on cpu``, as the file names them."""
    targets = (("optimizer", choice.optimizer), ("parameters", choice.parameters))
    moved = [f"{what} on {TIER_NAMES[tier]}" for what, tier in targets if tier != Tier.DEVICE]
    return " with ".join([f"stage {choice.stage}", *([" and ".join(moved)] if moved else [])])


def _ask(draft: Draft, open_paths: list[str]) -> None:
    flags = sizing.missing_flags(draft.facts)
    for path in open_paths:
        draft.missing(
            path,
            "the choice depends on what fits, and too little is known to estimate memory",
            f"give {' and '.join(flags)}" if flags else "mend the errors in the config first",
        )


def _write(draft: Draft, found: Candidate, passed: Sequence[Candidate]) -> None:
    choice = found.choice
    inputs: dict[str, Any] = {
        "device_bytes": found.device_bytes,
        "host_bytes": found.host_bytes,
        "too_big": {
            describe(each.choice): each.verdict.shortfall or "fits with less than 5 % to spare"
            for each in passed
        },
    }
    rule = f"{describe(choice)} is the fastest of those that fit, each with its largest micro batch"
    for path, value in (
        (STAGE, choice.stage),
        (OPTIMIZER, TIER_NAMES[choice.optimizer]),
        (PARAMETERS, TIER_NAMES[choice.parameters]),
    ):
        if draft.is_auto(path):
            draft.fill(path, value, Source.MEMORY, rule, **inputs)
    host = draft.facts.host
    for what, tier in (("optimizer", choice.optimizer), ("param", choice.parameters)):
        path = f"zero_optimization.offload_{what}.nvme_path"
        if tier is Tier.NVME and host is not None and not draft.explicit(path):
            draft.fill(path, host.nvme_path, Source.HARDWARE, "from --nvme")
    if found.option.host.bytes and (host is None or host.memory_bytes is None):
        draft.report(
            "DSC153",
            OPTIMIZER,
            f"offloading needs {gib(found.host_bytes)} of main memory on each node, and "
            "how much there is was not said",
            "give --host-memory",
        )


def _nothing_fits(
    draft: Draft, space: Space, open_paths: list[str], refused: Sequence[Candidate]
) -> None:
    draft.unresolved.update(open_paths)
    if not refused:
        message = "no stage goes with the offload targets that the config sets"
        remedy = (
            'offloading parameters needs stage 3 and an offloaded optimizer; write "auto" for them'
        )
    else:
        nearest = min(refused, key=lambda each: each.device_bytes)
        message = (
            f"no allowed choice holds micro batch {nearest.choice.micro_batch}; the nearest, "
            f"{describe(nearest.choice)}: {nearest.verdict.shortfall}"
        )
        remedy = (
            f'{suggested_choice(space)}; write "auto" for what the config fixes, or give --nvme'
        )
    draft.report("DSC154", open_paths[0], message, remedy)
