"""Resolve parallel degrees that are "auto", by the search among what dsengine executes, and check
those that are set."""

from dataclasses import replace

from dsconfig.cost import degree_search, divisions
from dsconfig.facts import Facts
from dsconfig.facts.hf_attributes import is_listed
from dsconfig.mesh import UNDIVIDED
from dsconfig.resolver import sizing
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Source
from dsconfig.runtimes.capabilities import refused_plan, requires_equal_parts
from dsconfig.schema.paths import DEGREES, SEQUENCE_PARALLEL, TENSOR_PARALLEL


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


def check(draft: Draft) -> None:
    """Report degrees that the model, its plan or the sequence does not allow."""
    for found in divisions.indivisible(draft.facts):
        if requires_equal_parts(draft.runtime, found.axis):
            problem = f"dsengine cannot divide by {found.axis} parallel {found.degree}: "
            _report(draft, found.axis, problem + found.problem, f"use {found.use}")
    if draft.facts.degrees.tensor > 1 and not draft.runtime.runs_deepspeed:
        refused = _refused_plan(draft)
        if refused:
            _report(draft, "tensor", f"{refused}: initialization fails", _WITHOUT_PLAN)


_WITHOUT_PLAN = (
    "write the rules tensor_parallel.partition_config.layer_specs for its layers, or train without "
    "tensor parallelism, at stage 3"
)


def _refused_plan(draft: Draft) -> str:
    """Return why dsengine does not split a model of transformers by its plan; "" if it does, if
    rules replace the plan, or if the family is not known."""
    shape = draft.facts.architecture
    rules = (f"{TENSOR_PARALLEL}.{name}" for name in ("partition_config", "preset_model"))
    if shape is None or not is_listed(shape.family) or any(map(draft.explicit, rules)):
        return ""
    return refused_plan(draft.runtime, shape.family).partition(": it would")[0]


def _report(draft: Draft, axis: str, problem: str, help: str) -> None:
    path = DEGREES[axis] if draft.explicit(DEGREES[axis]) else ""
    draft.report("DSC760", path, problem, help)
