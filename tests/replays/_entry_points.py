"""The verdict of each entry point on a config, compared with DeepSpeed's parser."""

from typing import Any

import dsconfig
from dsconfig.runtimes.deepspeed import deepspeed


def refuses(found: dsconfig.Diagnostic) -> bool:
    """Return whether the file is refused when it is parsed, not when the engine is built."""
    return found.effect is dsconfig.Effect.REFUSED and not found.late


def resolve_refuses(source: Any, facts: dsconfig.Facts, version: str) -> bool:
    """Return the verdict of ``resolve``, including errors that the reader put into the document."""
    document = dsconfig.read(source)
    resolution = parsed(document, facts, version)
    return any(map(refuses, (*document.diagnostics, *resolution.diagnostics)))


def parsed(source: Any, facts: dsconfig.Facts, version: str) -> dsconfig.Resolution:
    return dsconfig.resolve(source, facts, runtime=deepspeed(until="parse"), version=version)


def plan_refuses(resolution: dsconfig.Resolution, facts: dsconfig.Facts) -> bool | None:
    """Return None if a plan requires more than the parser: no "auto" and no quoted numbers."""
    unsettled = resolution.effective is None or any(
        found.severity is dsconfig.Severity.ERROR and not refuses(found)
        for found in resolution.diagnostics
    )
    try:
        dsconfig.plan(resolution, facts)
    except ValueError:
        return None if unsettled else True
    return False
