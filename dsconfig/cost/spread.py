"""How far the truth may lie from the answer, where something was assumed."""

from dsconfig.cost.timeline import SHAPED, Trace
from dsconfig.cost.workload import Workload


def spread(job: Workload, trace: Trace) -> tuple[int | None, int | None]:
    """(low, high) bytes of the peak; (None, None) where nothing was assumed.

    States follow from the count alone, to a few percent of padding and layout; what depends
    on shapes (activations, logits, gathered layers) may be a quarter off in another shape of
    the same size.
    """
    if not job.model.assumed:
        return None, None
    held = trace.parts[trace.peak_phase]
    loose = sum(amount for part, amount in held.items() if part.name in SHAPED)
    tight = trace.peak - loose
    return int(tight * 0.97 + loose * 0.75), int(tight * 1.03 + loose * 1.25)
