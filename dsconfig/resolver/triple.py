"""What is given of the batch triple, and by whom."""

from dataclasses import dataclass

from dsconfig.batch import GLOBAL, KEYS, MICRO, STEPS
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Source


@dataclass(frozen=True, slots=True)
class Known:
    """One member that is settled, and by whom."""

    value: int
    source: Source


def known_members(draft: Draft) -> dict[str, Known]:
    """Members of the config, then, where something is open, those of the training run."""
    known = {path: Known(draft.value(path), Source.CONFIG) for path in KEYS if draft.explicit(path)}
    training = draft.facts.training
    # Something is "auto", or the file settles too little by itself.
    is_open = any(draft.is_auto(path) for path in KEYS) or not {GLOBAL, MICRO} & known.keys()
    if training is None or not is_open:
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
