"""Largest micro batch that fits by the estimate."""

from dsconfig.cost import search, search_space
from dsconfig.facts.naming import named
from dsconfig.report.sizes import gib
from dsconfig.resolver import sizing, zero
from dsconfig.resolver.draft import Draft
from dsconfig.schema.paths import KeyPath


def largest(draft: Draft, path: KeyPath) -> int | None:
    """Return the largest micro batch that fits, or report why there is none."""
    if draft.unresolved:
        return None  # no stage fits, which is already reported
    space = sizing.space(draft)
    device, capacity = draft.facts.device, draft.facts.device_bytes
    if space is None or device is None or capacity is None:
        others = sizing.missing_facts(draft.facts)
        remedy = f"specify {named('micro_batch')}"
        if others:
            remedy += f", or {' and '.join(others)}"
        draft.missing(path, "the largest micro batch that fits cannot be estimated", remedy)
        return None
    (choice,) = space.arrangements()
    found = search.with_largest_batch(space, choice)
    if found is None:
        smallest = min(space.priced.values(), key=_micro_batch)
        draft.report(
            "DSC252",
            path,
            f"a micro batch of {smallest.choice.micro_batch} needs {gib(smallest.device_bytes)}, "
            f"the GPU has {gib(capacity)}",
            f'{zero.suggested_choice(space)}; write "auto" for the stage and the offload devices',
        )
        return None
    tried = sorted(space.priced.values(), key=_micro_batch)
    draft.searches[path] = {
        "device": device.name,
        "capacity_bytes": capacity,
        "peak_bytes": found.device_bytes,
        "tried": {str(_micro_batch(c)): gib(c.device_bytes, 2) for c in tried},
    }
    if found.verdict.tight:
        left = capacity - found.device_bytes
        draft.report(
            "DSC155",
            path,
            f"a micro batch of {found.choice.micro_batch} leaves only {gib(left, 2)} of GPU memory "
            "free by the estimate, and no other leaves more",
            'if it runs out of memory, use more GPUs, or "auto" for stage and offload devices',
        )
    return found.choice.micro_batch


def _micro_batch(candidate: search_space.Candidate) -> int:
    return candidate.choice.micro_batch
