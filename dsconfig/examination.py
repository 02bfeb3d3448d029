"""The one way from a config to its findings and its resolution, for every command.

[Note: one verdict] Rules judge what is written and what the program makes of it. For dsengine the
resolver and the planner add what they cannot decide or execute; for another program the resolver
only adds which facts are missing. A config has errors if any of them reports one, so that no
command can accept what another one refuses.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from dsconfig.applicable_fixes import with_applicable_fixes
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Effect
from dsconfig.report.report import Report, in_order
from dsconfig.schema.markers import AUTO
from dsconfig.source.pointer import contains, is_block

with lazy_imports():
    from dsconfig import opening
    from dsconfig.checks import runner
    from dsconfig.facts import embedded_facts
    from dsconfig.facts import facts as facts_module
    from dsconfig.planner.coverage import cover
    from dsconfig.planner.coverage import findings as engine_findings
    from dsconfig.resolver import entry
    from dsconfig.source import ignores

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsconfig.facts import Facts
    from dsconfig.report import Diagnostic
    from dsconfig.resolver.resolution import Resolution
    from dsconfig.runtimes.base import Runtime
    from dsconfig.runtimes.replay import Failure
    from dsconfig.schema.version import Version
    from dsconfig.source import Document

MISSING_FACT = "DSC150"
UNRESOLVED = (MISSING_FACT, "DSC152", "DSC154", "DSC251", "DSC252")
"""Errors of the resolver, which leave a value open."""


def findings(
    document: "Document", facts: "Facts | None", program: "Runtime | None", version: "Version"
) -> Report:
    """Return the findings for one program, or for all at a DeepSpeed release.

    Missing facts are not among them: what depends on them is not judged.
    """
    facts = _complete(facts, document)
    document = opening.used(document, facts)

    def check(read: "Document") -> Report:
        return _findings(read, facts, program, version)

    return with_applicable_fixes(document, check(document), check)


def _findings(
    document: "Document", facts: "Facts", program: "Runtime | None", version: "Version"
) -> Report:
    """Return the findings with all fixes, also those that cannot be applied."""
    if program is None:
        return _without_ignored(
            document, runner.check(document, facts, None, version), every_program=True
        )
    program = _launched(program, document)
    found = runner.check(document, facts, program, version)
    if not program.fills_auto and _may_add(document, facts, program):
        found += _added(document, facts, program, found)[0]
    return _without_ignored(document, (each for each in found if each.code != MISSING_FACT))


def resolution(document: "Document", facts: "Facts | None", program: "Runtime") -> "Resolution":
    """Return what a program makes of a config, with the errors of :func:`findings` and the facts
    that are missing."""
    facts = _complete(facts, document)
    document = opening.used(document, facts)
    program = _launched(program, document)
    found = runner.check(document, facts, program, program.version, notes=False)
    own, result = _added(document, facts, program, found)
    errors = _with_exception(Report(found).errors, result.failure or result.failure_after)
    # DeepSpeed computes with them; nothing here does.
    refused = {error.pointer for error in Report(found).refusals}
    accepted = set(document.large_integers) - refused
    large = (each for each in document.diagnostics if each.pointer in accepted)
    listed = _without_ignored(document, (*errors, *own, *large))
    return replace(result, diagnostics=listed.diagnostics)


def missing_facts(resolution: "Resolution") -> list[str]:
    """Return what to specify, if nothing but missing facts prevents a resolution."""
    missing = [found for found in resolution.refusals if found.code == MISSING_FACT]
    only = len(missing) == len(resolution.refusals)
    return list(dict.fromkeys(found.help or found.message for found in missing if only))


def _with_exception(
    errors: "tuple[Diagnostic, ...]", failure: "Failure | None"
) -> "Iterator[Diagnostic]":
    """Yield the errors; those at which the program stops first name its exception."""
    paths = () if failure is None or not failure.exception else failure.paths
    pointers = {path.pointer for path in paths}
    for error in errors:
        stops = error.effect is Effect.REFUSED and error.pointer in pointers
        if failure is not None and stops and failure.exception not in error.message:
            error = error._replace(message=f"{error.message} (raises {failure.exception})")
        yield error


def _launched(program: "Runtime", document: "Document") -> "Runtime":
    """Return the program, launched as the YAML file that contains the config requires."""
    container = document.container
    if document.is_generated or (container and embedded_facts.is_accelerate_config(container)):
        return program.under_accelerate_launch(
            config_file=not document.is_generated, overrides=document.overrides
        )
    return program


def _may_add(document: "Document", facts: "Facts", program: "Runtime") -> bool:
    """Return whether resolver or planner may find something in a config."""
    if document.is_template:
        return False
    values: object = document.value
    if contains(values, AUTO) or facts.world_size is not None:
        return True
    return not program.runs_deepspeed and is_block(values) and cover.may_refuse(values)


def _added(
    document: "Document", facts: "Facts", program: "Runtime", found: "tuple[Diagnostic, ...]"
) -> "tuple[tuple[Diagnostic, ...], Resolution]":
    """Return what resolver and planner add to the findings of the rules, and the resolution."""
    result = entry.resolve(document, facts, program)
    reported = {error.pointer for error in Report(found).errors if error.pointer}
    own = tuple(each for each in result.diagnostics if each.pointer not in reported)
    settled = not Report(found + own).refusals and not document.is_template
    if not program.runs_deepspeed and settled:
        own += tuple(engine_findings.unsupported_features(document, result, program))
    return own, result


def _complete(facts: "Facts | None", document: "Document") -> "Facts":
    """Return the facts, completed from the YAML file that contains the config."""
    facts = facts_module.Facts() if facts is None else facts
    is_inside = document.container or document.opened
    return embedded_facts.complete(facts, document) if is_inside else facts


def _without_ignored(
    document: "Document", found: "Iterable[Diagnostic]", *, every_program: bool = False
) -> Report:
    """Return the findings in order, without those that comments in the file ignore.

    Unused comments are reported only if all programs are checked: each may be for one of them.
    """
    listed = tuple(found)
    if document.may_ignore:
        listed = ignores.without_ignored(document, listed, report_unused=every_program)
    return Report(in_order(listed))
