"""Resolve parallel degrees that are "auto", by the search among what dsengine executes."""

from dataclasses import replace

from dsconfig.cost import degree_search
from dsconfig.facts import Facts
from dsconfig.mesh import UNDIVIDED
from dsconfig.resolver import sizing
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Source
from dsconfig.schema.paths import SEQUENCE_PARALLEL


def fill(draft: Draft) -> None:
    """Resolve ``sequence_parallel_size``, and use it in everything resolved afterwards."""
    path, degree = SEQUENCE_PARALLEL, draft.facts.degrees.sequence
    if degree > 1 or "sequence_parallel" in draft.facts.origins:
        origin = draft.facts.origins.get("sequence_parallel", "parallelism_config")
        draft.set(path, degree, Source.TRAINING, origin)
        return
    if draft.facts.degrees != UNDIVIDED:
        draft.set(path, degree, Source.DEFAULT, "not divided: another parallel degree is set")
        return

    def space(facts: Facts) -> sizing.Space | None:
        return sizing.space(draft, facts)

    found = degree_search.best(draft.facts, draft.runtime, space)
    if found is None:
        draft.set(path, 1, Source.DEFAULT, "not divided: memory cannot be estimated")
        return
    degrees = found.chosen.space.facts.degrees
    reasons = {each.axis: each.reason for each in found.rejected if each.degree is None}
    rule = "the fastest degree that fits, with the largest micro batch"
    if found.chosen.result.chosen is None:
        rule = "nothing fits; this degree comes closest"
    elif degrees.sequence == 1:
        rule = reasons.get("sequence", "no other degree is faster")
    draft.set(path, degrees.sequence, Source.MEMORY, rule)
    draft.facts = replace(draft.facts, degrees=degrees)
