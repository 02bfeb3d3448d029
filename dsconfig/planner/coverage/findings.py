"""What the engine does not have, as findings for who asks about dsengine alone."""

from collections.abc import Iterator

from dsconfig.facts import Facts
from dsconfig.planner.coverage.cover import coverage, may_refuse
from dsconfig.planner.plan import Status
from dsconfig.report import Diagnostic, Effect
from dsconfig.resolver import entry
from dsconfig.runtimes.base import Runtime
from dsconfig.source import Document
from dsconfig.source.pointer import dotted


def not_built(document: Document, facts: Facts, runtime: Runtime) -> Iterator[Diagnostic]:
    """One finding for each feature that the plan of a config would refuse, at its first key.

    None where the config cannot be resolved: the rules say why.
    """
    if not may_refuse(document.value):
        return
    effective = entry.resolve(document, facts, runtime).effective
    told: set[str] = set()
    for row in coverage(effective) if effective is not None else ():
        if row.status is not Status.REFUSED or row.by in told:
            continue
        told.add(row.by)
        feature, _, remedy = row.by.partition("; ")
        yield Diagnostic(
            code="DSC762",
            name="not-in-this-engine",
            effect=Effect.REFUSED,
            message=f"{dotted(row.pointer)}: {feature}: dsengine stops when the plan is made",
            pointer=row.pointer,
            range=document.range(row.pointer, key=True),
            runtimes=(runtime.name,),
            help=remedy or "delete it, or train with DeepSpeed",
            late=True,
        )
