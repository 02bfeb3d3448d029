"""Run all applicable rules on one config."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.keys import NO_SUGGESTION, UNKNOWN, is_comment
from dsconfig.checks.registry import applicable_rules
from dsconfig.checks.rule import Finding, Phase, Rule
from dsconfig.checks.superseded import without_superseded
from dsconfig.facts import Facts
from dsconfig.facts.naming import named
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Diagnostic, Effect
from dsconfig.runtimes.base import Runtime, every_runtime, runtime_of
from dsconfig.runtimes.dsengine import DsEngine
from dsconfig.schema.key_index import paths_of
from dsconfig.schema.version import NEWEST, Version
from dsconfig.source import findings, plugin_settings
from dsconfig.source.document import Document
from dsconfig.source.file_kinds import UNRELATED, FileKind, another_kind
from dsconfig.source.pointer import split

with lazy_imports():
    from dsconfig.checks import large_integers
    from dsconfig.source import strict


def check(
    document: Document,
    facts: Facts | None = None,
    runtime: str | Runtime | None = None,
    version: Version | None = None,
    *,
    notes: bool = True,
) -> tuple[Diagnostic, ...]:
    """Return the findings of the reader and of every rule, in no particular order.

    Without ``runtime`` the config is checked for all programs. Without ``notes``, rules that find
    nothing but notes are left out. Raises ValueError for an unknown runtime.
    """
    runtimes = (
        every_runtime(version or NEWEST) if runtime is None else (runtime_of(runtime, version),)
    )
    if not any(target.reads_hjson for target in runtimes):
        document = strict.as_strict_json_reads(document)
    names = tuple(target.name for target in runtimes)
    # What the reader reports applies to every program.
    diagnostics = [
        for_readers(runtimes, diagnostic)._replace(
            runtimes=() if diagnostic.code == findings.UNREADABLE else names
        )
        for diagnostic in document.diagnostics
    ]
    if document.large_integers:
        smaller = large_integers.without_findings(document)
        of_smaller = check(smaller, facts, runtime, version, notes=notes)
        return large_integers.judged(diagnostics, of_smaller, runtimes)
    if document.is_unreadable or document.is_broken or not isinstance(document.value, dict):
        return tuple(diagnostics)
    context = Context(document, facts or Facts(), runtimes, version or runtimes[0].version)
    for rule, finding in found_in(context, notes=notes):
        diagnostic = diagnostic_of(rule, finding, context)
        if diagnostic is not None:
            diagnostics.append(diagnostic)
            if diagnostic.effect is Effect.REFUSED:
                context.refused.add(diagnostic.pointer)
    diagnostics = without_superseded(diagnostics)
    return _wrong_file_kind(context, names, diagnostics) or tuple(diagnostics)


def found_in(context: Context, *, notes: bool = True) -> Iterator[tuple[Rule, Finding]]:
    """Yield what each rule that applies to this release finds, in the order of codes."""
    is_template, version = context.document.is_template, context.version
    for rule in applicable_rules(context.triggers):
        first, last = rule.releases
        skipped = is_template and not rule.on_templates
        skipped |= not notes and rule.effect is Effect.NOTE and not rule.also
        if not skipped and first <= version <= last:
            for finding in rule.check(context):
                yield rule, finding


def for_readers(runtimes: tuple[Runtime, ...], diagnostic: Diagnostic) -> Diagnostic:
    """Return the reader's finding for these programs: strict JSON keeps the last duplicate key."""
    if diagnostic.name != findings.DUPLICATE or diagnostic.range is None:
        return diagnostic
    if any(runtime.reads_hjson for runtime in runtimes):
        return diagnostic
    return findings.duplicate_key(diagnostic.pointer, diagnostic.range, in_file=False)


def _wrong_file_kind(
    context: Context, names: tuple[str, ...], diagnostics: list[Diagnostic]
) -> tuple[Diagnostic, ...]:
    """Return one finding instead of all others if the file is not a ds_config, else none.

    It has the effect of the most severe of them, so that the verdict does not change.
    """
    kind = another_kind(context.config) or _without_known_keys(context, diagnostics)
    if kind is None or not diagnostics:
        return ()
    effects = list(Effect)
    worst = min(diagnostics, key=lambda found: (effects.index(found.effect), found.late))
    replacement = findings.another_kind(kind.name, worst.effect, kind.advice(named))
    return (replacement._replace(runtimes=names, late=worst.late),)


def _without_known_keys(context: Context, diagnostics: list[Diagnostic]) -> FileKind | None:
    """Return the kind of a file in which every key, comments aside, is unknown."""
    unknown = [
        found for found in diagnostics if found.code == UNKNOWN and found.help == NO_SUGGESTION
    ]
    outermost = sum(len(split(found.pointer)) == 1 for found in unknown)
    keys = sum(not is_comment(name) for name in context.config)
    return UNRELATED if unknown and outermost == keys else None


def diagnostic_of(rule: Rule, finding: Finding, context: Context) -> Diagnostic | None:
    """Return the finding as it is reported, or None if it applies to none of the programs."""
    applies_to = finding.applies_to or rule.applies_to
    effect, message = finding.effect or rule.effect, finding.message
    phase = rule.stop.phase if finding.phase is None else finding.phase
    late = effect is Effect.REFUSED and phase > Phase.PARSE
    names = tuple(
        runtime.name
        for runtime in context.runtimes
        if applies_to(runtime) and (runtime.builds_engine or not late)
    )
    if finding.dsengine_message is not None and effect is not Effect.REFUSED:
        if context.runs_deepspeed:
            names = tuple(name for name in names if name != DsEngine.name)
        else:
            effect, message = Effect.REFUSED, finding.dsengine_message
    if not names:
        return None
    help = finding.help
    if help is not None and context.document.is_generated:
        help = plugin_settings.in_settings(help, lambda name: bool(paths_of(name)))
    pointer = finding.path.pointer
    place = finding.range or context.document.range(pointer, key=finding.on_key)
    return Diagnostic(
        code=rule.code,
        name=rule.name,
        effect=effect,
        message=message,
        pointer=pointer,
        range=None if finding.in_other_file else place,
        runtimes=names,
        help=help,
        fix=finding.fix,
        late=late,
        file=finding.file,
    )
