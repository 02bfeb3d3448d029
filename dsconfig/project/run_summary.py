"""What a config does to a run, with the facts of the project: training, memory, time, findings."""

from typing import TYPE_CHECKING, NamedTuple

from dsconfig import examination
from dsconfig.comparison import run_differences
from dsconfig.cost import estimator
from dsconfig.project import assumed_facts
from dsconfig.project.validator import Validator
from dsconfig.report import Diagnostic, Severity

if TYPE_CHECKING:
    from dsconfig.cost.estimate import Option
    from dsconfig.facts import Facts
    from dsconfig.project.inference import TargetProgram
    from dsconfig.source import Document


class RunSummary(NamedTuple):
    """A config under its target program."""

    document: "Document"
    program: "TargetProgram"
    facts: "Facts"
    training: dict[str, str]
    """Settings of the run as text; empty if the config has errors."""
    option: "Option | None"
    why: str
    """Why there is no estimate; empty if there is one."""
    findings: tuple[Diagnostic, ...]
    """Errors and warnings that the project does not ignore."""
    assumed: tuple[str, ...]


def summarize(
    document: "Document", facts: "Facts", program: "TargetProgram", file: str
) -> RunSummary:
    """Return what a run with the config does; ``file`` chooses the ignored rules of the project."""
    facts, assumed = assumed_facts.for_estimate(document, facts, program.runtime)
    own = Validator(facts, program=program).for_file(file)
    report = own.validate(document)
    found = tuple(each for each in report.diagnostics if each.severity is not Severity.INFO)
    resolution = examination.resolution(document, facts, program.runtime)
    effective = resolution.effective
    if effective is None:
        unknown = examination.missing_facts(resolution)
        why = "; ".join(unknown) if unknown else "it has errors"
        return RunSummary(document, program, facts, {}, None, why, found, tuple(assumed))
    training = run_differences.training(effective, facts.client_optimizer)
    option, why = None, ""
    try:
        option = estimator.estimate(effective, facts, runtime=program.runtime).options[0]
    except ValueError as error:
        why = str(error)
    return RunSummary(document, program, facts, training, option, why, found, tuple(assumed))
