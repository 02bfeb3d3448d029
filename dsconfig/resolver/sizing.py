"""Search space of a draft: the interface between resolver and estimator."""

from collections.abc import Mapping
from typing import Any

from dsconfig.cost import buckets, search_space
from dsconfig.facts import Facts
from dsconfig.facts.naming import named
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.triple import known_members
from dsconfig.runtimes.base import AUTO
from dsconfig.runtimes.effective import effective
from dsconfig.schema import paths
from dsconfig.source.pointer import is_block

ARRANGEMENT = {
    paths.STAGE: search_space.STAGE,
    paths.OPTIMIZER_DEVICE: search_space.OPTIMIZER,
    paths.PARAM_DEVICE: search_space.PARAMETERS,
}
"""Names in the search space, by path."""


Space = search_space.Space


def space(draft: Draft, facts: Facts | None = None) -> Space | None:
    """Return the search space of a draft: "auto" is open, other values are constraints.

    ``facts``: others than those of the draft. None if facts or config do not allow an estimate; see
    :func:`missing_facts`.
    """
    facts = facts or draft.facts
    if missing_facts(facts):
        return None
    try:
        base = effective(_without_auto(draft.config), facts, version=draft.runtime.version)
    except (ValueError, TypeError, OverflowError):
        return None
    sizes = {name for name in buckets.KEYS if draft.is_auto(paths.ZERO / name)}
    arranged = {name for path, name in ARRANGEMENT.items() if draft.is_auto(path)}
    known = {path: member.value for path, member in known_members(draft).items()}
    counts = {path: n for path, n in known.items() if type(n) is int and n > 0}
    return Space(
        base=base,
        facts=facts,
        runtime=draft.runtime,
        batches=search_space.batches(
            facts.data_parallel or 1,
            total=counts.get(paths.GLOBAL_BATCH),
            micro=counts.get(paths.MICRO_BATCH),
            steps=counts.get(paths.ACCUMULATION),
            searched=draft.is_auto(paths.MICRO_BATCH) or draft.is_auto(paths.ACCUMULATION),
        ),
        open=frozenset(sizes | arranged),
    )


def missing_facts(facts: Facts) -> tuple[str, ...]:
    """Return what states each fact that an estimate still requires."""
    counted = named("params")
    needed: dict[str, object] = {
        named("gpus"): facts.world_size,
        named("device"): facts.device_bytes,
        (counted if facts.outline else f"{named('model')} or {counted}"): facts.model,
    }
    if facts.architecture is not None:
        # Without it activations would be missing from the estimate.
        needed[named("seq_len")] = facts.sequence_length
    return tuple(name for name, fact in needed.items() if fact is None)


def _without_auto(value: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, child in value.items():
        if is_block(child):
            kept[key] = _without_auto(child)
        elif not (isinstance(child, str) and child == AUTO):
            kept[key] = child
    return kept
