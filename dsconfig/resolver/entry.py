"""One question, two kinds of answer: our own policy, or another program's behaviour."""

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
from dsconfig.source.pointer import is_block

with lazy_imports():
    from dsconfig.resolver import agreement, foreign, policy
    from dsconfig.runtimes import effective

if TYPE_CHECKING:
    from dsconfig.runtimes.effective import Effective


def resolve(
    document: Document, facts: Facts | None = None, runtime: str | Runtime = "dsengine"
) -> Resolution:
    """Fill in every "auto", with the reason for each value.

    Under ``dsengine`` by our own policy; for another runtime the answer is what that program
    would do with this file and these facts, its errors included. Pure: nothing is read from
    outside the arguments. Raises ValueError for an unknown runtime name.
    """
    runtime = runtime_of(runtime)
    facts = facts or Facts()
    value: object = document.value
    if document.is_unreadable or document.is_broken or not is_block(value):
        return _unreadable(document, runtime)
    draft = Draft(document, facts, runtime)
    (foreign if runtime.fills_auto else policy).fill(draft)
    if facts.launch or facts.arguments:
        agreement.check(draft, value)
    return Resolution(
        config=draft.config,
        ledger=tuple(draft.ledger),
        diagnostics=in_order(draft.findings),
        runtime=runtime.name,
        version=runtime.version,
        derive=partial(_effective, draft.config, facts, runtime),
    )


def _effective(config: dict[str, Any], facts: Facts, runtime: Runtime) -> "Effective | None":
    """None where a value is of a type that cannot be used; ``validate`` says which."""
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
            message="the file holds no object of keys and values, so there is nothing to resolve",
            runtimes=(runtime.name,),
            help='write an object: {"train_micro_batch_size_per_gpu": "auto", ...}',
        ),
    )
    return Resolution(
        config={}, ledger=(), diagnostics=found, runtime=runtime.name, derive=lambda: None
    )
