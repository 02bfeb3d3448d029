"""Findings for features that dsengine does not implement."""

from collections.abc import Iterator

from dsconfig.facts import Facts
from dsconfig.planner.coverage.cover import coverage, may_refuse
from dsconfig.planner.plan import Status
from dsconfig.report import Diagnostic, Effect
from dsconfig.resolver import entry
from dsconfig.runtimes.base import Runtime
from dsconfig.source import Document
from dsconfig.source.pointer import dotted


def unsupported_features(
    document: Document, facts: Facts, runtime: Runtime
) -> Iterator[Diagnostic]:
    """Yield one finding per refused feature, at its first key.

    Nothing if the config cannot be resolved, which rules report.
    """
    if not may_refuse(document.value):
        return
    effective = entry.resolve(document, facts, runtime).effective
    reported: set[str] = set()
    for row in coverage(effective) if effective is not None else ():
        if row.status is not Status.REFUSED or row.by in reported:
            continue
        reported.add(row.by)
        feature, _, remedy = row.by.partition("; ")
        yield Diagnostic(
            code="DSC762",
            name="not-in-this-engine",
            effect=Effect.REFUSED,
            message=f"{dotted(row.pointer)}: {feature}; dsengine refuses to plan it",
            pointer=row.pointer,
            range=document.range(row.pointer, key=True),
            runtimes=(runtime.name,),
            help=remedy or "delete it, or train with DeepSpeed",
            late=True,
        )
