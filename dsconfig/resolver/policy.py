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
    zero,
)
from dsconfig.resolver.draft import Draft

STEPS = (
    sections.expand,
    precision.fill,
    optimizer.fill,
    scheduler.fill,
    zero.fill,
    buckets.fill,
    batch.fill,
    leftovers.fill,
)


def fill(draft: Draft) -> None:
    """Settle everything that is "auto", and the batch triple."""
    for step in STEPS:
        step(draft)
