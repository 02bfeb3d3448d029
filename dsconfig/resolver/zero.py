"""Resolve ZeRO stage and offload devices: the fastest per sample that fits."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dsconfig.cost import search, search_space
from dsconfig.cost.activations import Recompute
from dsconfig.cost.choices import Choice, choice_of, recomputation_edits
from dsconfig.cost.search_space import Candidate, Space
from dsconfig.facts.naming import named
from dsconfig.report.sizes import gib
from dsconfig.resolver import sizing
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Source
from dsconfig.runtimes.effective import TIER_NAMES, Tier
from dsconfig.schema import paths
from dsconfig.schema.paths import KeyPath


def fill(draft: Draft) -> None:
    """Resolve stage and offload devices that are "auto"; other values are constraints."""
    open_paths = [path for path in sizing.ARRANGEMENT if draft.is_auto(path)]
    space = sizing.space(draft)
    if space is None:
        _report_missing_facts(draft, open_paths)
        return
    found = search.fastest(space)
    passed = [space.candidate(choice) for choice in found.skipped]
    if found.chosen is not None:
        _write(draft, found.chosen, passed)
    else:
        _nothing_fits(draft, space, open_paths, passed)


def suggested_choice(space: Space) -> str:
    """Describe what the search would choose if stage and offload devices were open."""
    before = choice_of(space.base, space.facts).recompute
    opened = space.open | search_space.ARRANGEMENT
    if before is not Recompute.FULL:  # else everything is recomputed already
        opened |= {search_space.RECOMPUTE}
    opened_space = replace(space, open=opened, priced={})
    found = search.fastest(opened_space).chosen
    if found is None:
        return "no stage and offload device fits: use more GPUs or GPUs with more memory"
    smallest = opened_space.with_batch(found.choice, space.batches.sizes[0])
    need = gib(smallest.device_bytes)
    steps = space.runtime.instructions(recomputation_edits(found.choice.recompute), {})
    is_new = found.choice.recompute is not before and bool(steps)
    also = f" together with {steps[0]}" if is_new else ""
    if also and found.choice.recompute is Recompute.SELECTIVE:  # no config key expresses it
        also += f" (for dsconfig: {named('recompute', 'selective')})"
    return f"{describe(found.choice)}{also} would fit ({need})"


def describe(choice: Choice) -> str:
    """Describe a choice: ``stage 3 with optimizer on cpu and parameters on cpu``."""
    targets = (("optimizer", choice.optimizer), ("parameters", choice.parameters))
    offloaded = [f"{what} on {TIER_NAMES[tier]}" for what, tier in targets if tier != Tier.DEVICE]
    return " with ".join(
        [f"stage {choice.stage}", *([" and ".join(offloaded)] if offloaded else [])]
    )


def _report_missing_facts(draft: Draft, open_paths: list[KeyPath]) -> None:
    missing = sizing.missing_facts(draft.facts)
    for path in open_paths:
        draft.missing(
            path,
            "the choice depends on memory, which cannot be estimated without more facts",
            f"specify {' and '.join(missing)}" if missing else "fix the errors in the config first",
        )


def _write(draft: Draft, found: Candidate, passed: Sequence[Candidate]) -> None:
    choice = found.choice
    inputs: dict[str, Any] = {
        "device_bytes": found.device_bytes,
        "host_bytes": found.host_bytes,
        "too_big": {
            describe(candidate.choice): candidate.verdict.shortfall
            or "fits with less than 5% headroom"
            for candidate in passed
        },
    }
    rule = f"{describe(choice)} is the fastest choice that fits, with the largest micro batch"
    for path, value in (
        (paths.STAGE, choice.stage),
        (paths.OPTIMIZER_DEVICE, TIER_NAMES[choice.optimizer]),
        (paths.PARAM_DEVICE, TIER_NAMES[choice.parameters]),
    ):
        if draft.is_auto(path):
            draft.set(path, value, Source.MEMORY, rule, **inputs)
    host = draft.facts.host
    tiers = {paths.OPTIMIZER_NVME: choice.optimizer, paths.PARAM_NVME: choice.parameters}
    for path, tier in tiers.items():
        if tier is Tier.NVME and host is not None and not draft.explicit(path):
            draft.set(path, host.nvme_path, Source.HARDWARE, "NVMe directory of the machine")
    if found.option.host.bytes and (host is None or host.memory_bytes is None):
        draft.report(
            "DSC153",
            paths.OPTIMIZER_DEVICE,
            f"offload requires {gib(found.host_bytes)} of host memory per node; the available "
            "host memory is not specified",
            f"specify {named('host_memory')}",
        )


def _nothing_fits(
    draft: Draft, space: Space, open_paths: list[KeyPath], refused: Sequence[Candidate]
) -> None:
    draft.unresolved.update(open_paths)
    if not refused:
        message = "no stage supports the offload devices set in the config"
        remedy = 'parameter offload requires stage 3 and optimizer offload; write "auto" for both'
    else:
        nearest = min(refused, key=lambda candidate: candidate.device_bytes)
        message = (
            f"micro batch {nearest.choice.micro_batch} does not fit; closest: "
            f"{describe(nearest.choice)}: {nearest.verdict.shortfall}"
        )
        remedy = (
            f'{suggested_choice(space)}; write "auto" for the fixed values, or specify '
            f"{named('nvme')}"
        )
    draft.report("DSC154", open_paths[0], message, remedy)
