"""resolve(): by dsconfig's policy, or by replaying another program."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from dsconfig.facts import Facts
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Diagnostic, Effect
from dsconfig.report.report import in_order
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Resolution
from dsconfig.runtimes.base import Runtime, runtime_of
from dsconfig.source import Document
from dsconfig.source.pointer import is_block, join

with lazy_imports():
    from dsconfig.checks import agreement
    from dsconfig.resolver import foreign, policy
    from dsconfig.runtimes import effective
    from dsconfig.source import strict

if TYPE_CHECKING:
    from dsconfig.runtimes.effective import Effective


def resolve(
    document: Document, facts: Facts | None = None, runtime: str | Runtime = "dsengine"
) -> Resolution:
    """Replace every "auto" by a value and record the reason.

    For ``dsengine`` dsconfig's policy decides; for another runtime the result is what that program
    does with this config and these facts, including its errors. Depends only on the arguments.
    Raises ValueError for an unknown runtime name.
    """
    runtime = runtime_of(runtime)
    facts = facts or Facts()
    if not runtime.reads_hjson:
        document = strict.as_strict_json_reads(document)
    value: object = document.value
    if document.is_unreadable or document.is_broken or not is_block(value):
        return _unreadable(document, runtime)
    draft = Draft(document, facts, runtime)
    (foreign if runtime.fills_auto else policy).fill(draft)
    if facts.launch or facts.arguments:
        _report_disagreements(draft, value)
    return Resolution(
        config=draft.config,
        ledger=tuple(draft.ledger),
        diagnostics=in_order(draft.findings),
        runtime=runtime.name,
        version=runtime.version,
        derive=partial(_effective, draft.config, facts, runtime),
    )


def _report_disagreements(draft: Draft, original: Mapping[str, Any]) -> None:
    """Report every conflict between the files that is not reported already."""
    facts, runtime = draft.facts, draft.runtime
    reported = {found.pointer for found in draft.findings if found.code == "DSC760"}
    for conflict in agreement.disagreements(original, facts):
        from_launch = conflict.left is None and conflict.right.file == agreement.LAUNCH
        if draft.document.is_generated and from_launch:
            continue  # the config was generated from it
        if join(*conflict.path.split(".")) not in reported:
            followed = agreement.followed_source(conflict, runtime)
            message = agreement.describe(draft.document.name, conflict, original, facts, followed)
            help = agreement.help_for(conflict, original, (runtime,))
            effect = agreement.effect_of(conflict, (runtime,))
            draft.report("DSC758", conflict.path, message, help, effect=effect)


def _effective(config: dict[str, Any], facts: Facts, runtime: Runtime) -> "Effective | None":
    """Return the effective settings, or None if a value has a wrong type."""
    try:
        settled = effective.effective(config, facts, version=runtime.version)
    except (ValueError, TypeError, OverflowError):
        return None
    return settled if runtime.recomputes_from_config else effective.without_recomputation(settled)


def _unreadable(document: Document, runtime: Runtime) -> Resolution:
    found = document.diagnostics or (
        Diagnostic(
            code="DSC151",
            name="not-a-config",
            effect=Effect.REFUSED,
            message="the file does not contain a config object",
            runtimes=(runtime.name,),
            help='write an object: {"train_micro_batch_size_per_gpu": "auto", ...}',
        ),
    )
    return Resolution(
        config={}, ledger=(), diagnostics=found, runtime=runtime.name, derive=lambda: None
    )
