"""resolve(): by dsconfig's policy, or by replaying another program."""

from functools import partial
from typing import TYPE_CHECKING, Any

from dsconfig.facts import Facts
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report.report import in_order
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Resolution
from dsconfig.runtimes.base import Runtime, runtime_of
from dsconfig.source import Document
from dsconfig.source.pointer import is_block

with lazy_imports():
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
    does with this config and these facts. The diagnostics are those of the resolver alone: the
    errors of the program are rules. Depends only on the arguments. Raises ValueError for an unknown
    runtime name.
    """
    runtime = runtime_of(runtime)
    facts = facts or Facts()
    if not runtime.reads_hjson:
        document = strict.as_strict_json_reads(document)
    value: object = document.value
    if document.is_unreadable or document.is_broken or not is_block(value):
        return Resolution(
            config={},
            ledger=(),
            diagnostics=(),
            runtime=runtime.name,
            version=runtime.version,
            derive=lambda: None,
        )
    draft = Draft(document, facts, runtime)
    (foreign if runtime.fills_auto else policy).fill(draft)
    return Resolution(
        config=draft.config,
        ledger=tuple(draft.ledger),
        diagnostics=in_order(draft.findings),
        runtime=runtime.name,
        version=runtime.version,
        failure=draft.failure,
        failure_after=draft.failure_after,
        derive=partial(_effective, draft.config, facts, runtime),
    )


def _effective(config: dict[str, Any], facts: Facts, runtime: Runtime) -> "Effective | None":
    """Return the effective settings, or None if a value has a wrong type."""
    try:
        settled = effective.effective(config, facts, version=runtime.version)
    except (ValueError, TypeError, OverflowError):
        return None
    return settled if runtime.recomputes_from_config else effective.without_recomputation(settled)
