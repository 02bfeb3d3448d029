"""Changes that make a config fit, each checked as it would be after it is made."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dsconfig import examination
from dsconfig.cost import estimator, fit, remedies
from dsconfig.facts.training import NAMES_OF, TrainingFacts
from dsconfig.project import changes
from dsconfig.report import Report
from dsconfig.runtimes.base import RECOMPUTATION
from dsconfig.schema import paths

if TYPE_CHECKING:
    from dsconfig.cost.remedies import Change
    from dsconfig.facts import Facts
    from dsconfig.runtimes.base import Runtime
    from dsconfig.runtimes.effective import Effective
    from dsconfig.source import Document

REPAIRS: tuple[dict[str, Any], ...] = ({}, {paths.GLOBAL_BATCH.pointer: None})
"""Further edits to try, as few as possible: the global batch follows from the other sizes."""


def cheapest_changes(
    effective: "Effective",
    facts: "Facts",
    program: "Runtime",
    document: "Document",
    *,
    count: int = 3,
) -> "tuple[Change, ...]":
    """Return the fastest changes that make a config fit, with every edit that they need.

    A change that the program would refuse is not among them.
    """
    known = _refusals(examination.resolution(document, facts, program).diagnostics)

    def accept(change: "Change") -> "Change | None":
        attempts = (replace(change, edits=change.edits | repair) for repair in REPAIRS)
        checked = (_checked(each, program, document, known) for each in attempts)
        return next((found for found in checked if found is not None), None)

    return remedies.cheapest_changes(effective, facts, runtime=program, count=count, accept=accept)


def _checked(
    change: "Change", program: "Runtime", document: "Document", known: set[tuple[str, str]]
) -> "Change | None":
    """Return a change with the estimate of the changed config; None if that is refused, or does
    not fit although it should."""
    facts = facts_after(change)
    result = examination.resolution(changes.changed(change, program, document), facts, program)
    if _refusals(result.diagnostics) - known:
        return None
    effective = result.effective or result.derive()
    if effective is None:
        return change
    option = estimator.estimate_option(effective, facts, runtime=program)
    if change.fits and not fit.verdict_on(option, effective, facts).fits:
        return None
    return replace(change, option=option)


def facts_after(change: "Change") -> "Facts":
    """Return the facts of the run once a change is made: also of its batch and recomputation."""
    facts, edits = change.facts, change.edits
    if RECOMPUTATION in edits:
        facts = facts.with_execution({"gradient_checkpointing": True})
    of_batch = (paths.MICRO_BATCH, paths.ACCUMULATION)
    sizes = {path: edits[path.pointer] for path in of_batch if path.pointer in edits}
    training = facts.training or TrainingFacts()
    arguments = {
        NAMES_OF[path][0]: value
        for path, value in sizes.items()
        if NAMES_OF[path][0] in training.arguments
    }
    return replace(
        facts,
        training=replace(
            training,
            micro_batch_size=sizes.get(paths.MICRO_BATCH, training.micro_batch_size),
            gradient_accumulation_steps=sizes.get(
                paths.ACCUMULATION, training.gradient_accumulation_steps
            ),
            arguments={**training.arguments, **arguments},
        ),
    )


def _refusals(diagnostics: "tuple[Any, ...]") -> set[tuple[str, str]]:
    """Return code and pointer of the errors at which the program stops."""
    return {(error.code, error.pointer) for error in Report(diagnostics).refusals}
