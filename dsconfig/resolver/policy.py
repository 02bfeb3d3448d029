"""Our own policy, in its order: precision, stage and offload, buckets, batch, the rest.

Each step sees what the steps before it decided. Precision comes first because every byte
count depends on it; the optimizer's type before memory because its states do.
"""

from dsconfig.resolver import (
    batch,
    buckets,
    leftovers,
    optimizer,
    precision,
    scheduler,
    sections,
)
from dsconfig.resolver.draft import Draft

STAGE_PATHS = (
    "zero_optimization.stage",
    "zero_optimization.offload_optimizer.device",
    "zero_optimization.offload_param.device",
)


def _stage(draft: Draft) -> None:
    """Imported when there is something to choose: it brings the estimator along."""
    if any(draft.is_auto(path) for path in STAGE_PATHS):
        from dsconfig.resolver import zero

        zero.fill(draft)


STEPS = (
    sections.expand,
    precision.fill,
    optimizer.fill,
    scheduler.fill,
    _stage,
    buckets.fill,
    batch.fill,
    leftovers.fill,
)


def fill(draft: Draft) -> None:
    """Settle everything that is "auto", and the batch triple."""
    for step in STEPS:
        step(draft)
