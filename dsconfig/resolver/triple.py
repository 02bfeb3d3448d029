"""Known members of the batch triple and their source."""

from dataclasses import dataclass

from dsconfig.facts.training import ASSUMED
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Source
from dsconfig.schema.paths import ACCUMULATION, BATCH, GLOBAL_BATCH, MICRO_BATCH, KeyPath


@dataclass(frozen=True, slots=True)
class Known:
    """Value of a member and its source."""

    value: int
    source: Source


def known_members(draft: Draft) -> dict[KeyPath, Known]:
    """Return the members set in the config and, if it leaves some open, in the training run."""
    written = filter(draft.explicit, BATCH)
    known = {path: Known(draft.given(path), Source.CONFIG) for path in written}
    training = draft.facts.training
    # Something is "auto", or the config does not determine the batch.
    is_open = any(map(draft.is_auto, BATCH)) or not {GLOBAL_BATCH, MICRO_BATCH} & known.keys()
    if training is None or not is_open:
        return known
    offered = {
        GLOBAL_BATCH: training.global_batch_size,
        MICRO_BATCH: training.micro_batch_size,
        ACCUMULATION: training.gradient_accumulation_steps,
    }
    for path, value in offered.items():
        if value is not None and path not in known:
            is_assumed = path == ACCUMULATION and draft.facts.origins.get("accumulation") == ASSUMED
            known[path] = Known(value, Source.DEFAULT if is_assumed else Source.TRAINING)
    return known
