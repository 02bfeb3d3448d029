"""Findings for features that dsengine does not implement."""

from collections.abc import Iterator

from dsconfig.checks import registry
from dsconfig.features.table import Status
from dsconfig.planner.coverage.cover import coverage, may_refuse
from dsconfig.report import Diagnostic
from dsconfig.resolver.resolution import Resolution
from dsconfig.runtimes.base import Runtime
from dsconfig.source import Document
from dsconfig.source.pointer import dotted


def unsupported_features(
    document: Document, resolution: Resolution, runtime: Runtime
) -> Iterator[Diagnostic]:
    """Yield one finding per refused feature, at its first key."""
    if not may_refuse(document.value):
        return
    effective = resolution.effective
    reported: set[str] = set()
    for row in coverage(effective) if effective is not None else ():
        if row.status is not Status.REFUSED or row.by in reported:
            continue
        reported.add(row.by)
        feature, _, remedy = row.by.partition("; ")
        declared = registry.declared("DSC762")
        yield Diagnostic(
            code=declared.code,
            name=declared.name,
            effect=declared.effect,
            message=f"{dotted(row.pointer)}: {feature}; dsengine refuses to plan it",
            pointer=row.pointer,
            range=document.range(row.pointer, key=True),
            runtimes=(runtime.name,),
            help=remedy or "delete it, or train with DeepSpeed",
            late=True,
        )
