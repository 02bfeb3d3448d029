"""The largest micro batch that the estimate says fits."""

from dsconfig.cost import search
from dsconfig.report.sizes import gib
from dsconfig.resolver import sizing, zero
from dsconfig.resolver.draft import Draft


def largest(draft: Draft, path: str) -> int | None:
    """Search for it and remember the search; None when there is no answer, with a diagnostic."""
    if draft.unresolved:
        return None  # no stage fits: that was said, and there is nothing to search
    space = sizing.space(draft)
    device, capacity = draft.facts.device, draft.facts.device_bytes
    if space is None or device is None or capacity is None:
        flags = sizing.missing_flags(draft.facts)
        remedy = f"give --micro-batch, or {' and '.join(flags)}" if flags else "give --micro-batch"
        draft.missing(path, "the largest micro batch that fits cannot be estimated", remedy)
        return None
    (choice,) = space.arrangements()
    found = search.with_largest_batch(space, choice)
    if found is None:
        smallest = min(space.priced.values(), key=lambda each: each.choice.micro_batch)
        draft.report(
            "DSC252",
            path,
            f"a micro batch of {smallest.choice.micro_batch} needs {gib(smallest.device_bytes)} on "
            f"a device of {gib(capacity)}",
            f'{zero.suggested_choice(space)}; write "auto" for the stage and the offload devices',
        )
        return None
    tried = sorted(space.priced.values(), key=lambda each: each.choice.micro_batch)
    draft.searches[path] = {
        "device": device.name,
        "capacity_bytes": capacity,
        "peak_bytes": found.device_bytes,
        "tried": {str(each.choice.micro_batch): gib(each.device_bytes, 2) for each in tried},
    }
    if found.verdict.tight:
        left = capacity - found.device_bytes
        draft.report(
            "DSC155",
            path,
            f"a micro batch of {found.choice.micro_batch} leaves {gib(left, 2)} of the "
            "device by the estimate",
            "should it run out of memory, write the next smaller one",
        )
    return found.choice.micro_batch
