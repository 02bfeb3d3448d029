"""What DeepSpeed's parser does to a config, by every entry point that answers the question."""

from typing import Any

import dsconfig
from dsconfig.runtimes.deepspeed import deepspeed


def refuses(found: dsconfig.Diagnostic) -> bool:
    """A refusal while the file is read; a late one stops only the engine."""
    return found.effect is dsconfig.Effect.REFUSED and not found.late


def resolve_refuses(source: Any, facts: dsconfig.Facts, version: str) -> bool:
    """``resolve`` asks for the text first: what its reader refuses stands in the document."""
    document = dsconfig.read(source)
    resolution = parsed(document, facts, version)
    return any(map(refuses, (*document.diagnostics, *resolution.diagnostics)))


def parsed(source: Any, facts: dsconfig.Facts, version: str) -> dsconfig.Resolution:
    return dsconfig.resolve(source, facts, runtime=deepspeed(until="parse"), version=version)


def plan_refuses(resolution: dsconfig.Resolution, facts: dsconfig.Facts) -> bool | None:
    """None where a plan wants more than the parser: no "auto", and no number in quotes."""
    unsettled = resolution.effective is None or any(
        found.severity is dsconfig.Severity.ERROR and not refuses(found)
        for found in resolution.diagnostics
    )
    try:
        dsconfig.plan(resolution, facts)
    except ValueError:
        return None if unsettled else True
    return False
