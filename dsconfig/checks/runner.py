"""All rules that have something to look at, asked about one config."""

from dsconfig.checks.context import Context
from dsconfig.checks.keys import NO_IDEA, UNKNOWN, is_comment
from dsconfig.checks.registry import applicable_rules
from dsconfig.checks.rule import Finding, Rule
from dsconfig.facts import Facts
from dsconfig.report import Diagnostic, Effect
from dsconfig.runtimes.base import Runtime, every_runtime, runtime_of
from dsconfig.runtimes.dsengine import DsEngine
from dsconfig.schema.version import NEWEST, Version
from dsconfig.source import findings
from dsconfig.source.document import Document
from dsconfig.source.file_kinds import UNRELATED, FileKind, another_kind
from dsconfig.source.pointer import join, split


def check(
    document: Document,
    facts: Facts | None = None,
    runtime: str | Runtime | None = None,
    version: Version | None = None,
) -> tuple[Diagnostic, ...]:
    """The reader's findings and those of every rule, in no particular order.

    Without ``runtime`` the config is judged for all of them. Raises ValueError for an
    unknown runtime.
    """
    if runtime is None:
        judged = every_runtime(version or NEWEST)
    else:
        judged = (runtime_of(runtime, version),)
    names = tuple(each.name for each in judged)
    # What the reader finds holds for whoever reads the file.
    found = [_read_by(judged, each)._replace(runtimes=names) for each in document.diagnostics]
    if document.is_unreadable or document.is_broken or not isinstance(document.value, dict):
        return tuple(found)
    context = Context(document, facts or Facts(), judged, version or judged[0].version)
    for rule in applicable_rules(context.triggers):
        if document.is_template and not rule.on_templates:
            continue
        for finding in rule.check(context):
            diagnostic = _diagnostic(rule, finding, context)
            if diagnostic is not None:
                found.append(diagnostic)
                context.is_refused |= diagnostic.effect is Effect.REFUSED
    return _of_another_kind(context, names, found) or tuple(found)


def _read_by(judged: tuple[Runtime, ...], found: Diagnostic) -> Diagnostic:
    """A finding of the reader for these programs: plain JSON readers keep the last of two keys."""
    if found.name != findings.TWICE or found.range is None:
        return found
    if any(runtime.reads_hjson for runtime in judged):
        return found
    return findings.duplicate_key(found.pointer, found.range, in_file=False)


def _of_another_kind(
    context: Context, names: tuple[str, ...], found: list[Diagnostic]
) -> tuple[Diagnostic, ...]:
    """One finding in the place of all, for a file that is no ds_config; else none.

    It is as grave as the gravest, so that the verdict of the program stays what it is.
    """
    kind = another_kind(context.config) or _strange(context, found)
    if kind is None or not found:
        return ()
    gravest = min(found, key=lambda each: (list(Effect).index(each.effect), each.late))
    told = findings.another_kind(kind.name, gravest.effect, kind.help)
    return (told._replace(runtimes=names, late=gravest.late),)


def _strange(context: Context, found: list[Diagnostic]) -> FileKind | None:
    """What a file is of whose keys, but for remarks, none means anything."""
    told = [each for each in found if each.code == UNKNOWN and each.help == NO_IDEA]
    outermost = sum(len(split(each.pointer)) == 1 for each in told)
    keys = sum(not is_comment(name) for name in context.config)
    return UNRELATED if told and outermost == keys else None


def _diagnostic(rule: Rule, finding: Finding, context: Context) -> Diagnostic | None:
    applies_to = finding.applies_to or rule.applies_to
    effect, message = finding.effect or rule.effect, finding.message
    late = effect is Effect.REFUSED and (rule.late if finding.late is None else finding.late)
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
    pointer = join(*finding.path)
    place = finding.range or context.document.range(pointer, key=finding.on_key)
    return Diagnostic(
        code=rule.code,
        name=rule.name,
        effect=effect,
        message=message,
        pointer=pointer,
        range=None if finding.in_other_file else place,
        runtimes=names,
        help=finding.help,
        fix=finding.fix,
        late=late,
    )
