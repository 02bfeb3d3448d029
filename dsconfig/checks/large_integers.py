"""Effects of integers that no float can hold, from the effects of a smaller integer.

DeepSpeed's parser treats both alike, except where it converts the value to a float.
"""

from collections.abc import Sequence

from dsconfig.report import Diagnostic, Effect
from dsconfig.runtimes.base import Runtime
from dsconfig.schema.catalogue import find
from dsconfig.source.document import Document
from dsconfig.source.findings import LARGE_INTEGER, OVERFLOWS
from dsconfig.source.pointer import split


def without_findings(document: Document) -> Document:
    """Return the document as if it contained the smaller integers."""
    kept = tuple(finding for finding in document.diagnostics if finding.code != LARGE_INTEGER)
    return document._replace(is_broken=False, large_integers=(), diagnostics=kept)


def judged(
    found: Sequence[Diagnostic],
    of_smaller: Sequence[Diagnostic],
    runtimes: Sequence[Runtime],
) -> tuple[Diagnostic, ...]:
    """Return the findings for a document with large integers.

    ``found``: those of the reader; ``of_smaller``: those with smaller integers instead.
    """
    large = [finding for finding in found if finding.code == LARGE_INTEGER]
    pointers = {finding.pointer for finding in large}
    others = (finding for finding in of_smaller if finding.pointer not in pointers)
    return (*(_judged(finding, of_smaller, runtimes) for finding in large), *others)


def _judged(
    finding: Diagnostic, of_smaller: Sequence[Diagnostic], runtimes: Sequence[Runtime]
) -> Diagnostic:
    """Return the finding with the most severe effect at its key; dsengine refuses any."""
    own = [other for other in of_smaller if other.pointer == finding.pointer]
    refusals = [other for other in own if other.effect is Effect.REFUSED]
    refusing = {name for other in refusals for name in other.runtimes}
    at_once = [
        runtime
        for runtime in runtimes
        if not runtime.runs_deepspeed or _is_converted(finding.pointer, runtime)
    ]
    names = tuple(
        runtime.name for runtime in runtimes if runtime in at_once or runtime.name in refusing
    )
    if names:
        late = not at_once and all(other.late for other in refusals)
        stopped = "dsengine rejects" if names == ("dsengine",) else "the program rejects"
        message = finding.message.replace(OVERFLOWS, f"{stopped} the config")
        return finding._replace(runtimes=names, late=late, message=message)
    effects = [other.effect for other in own]
    effect = min(effects, key=list(Effect).index, default=Effect.NOTE)
    message = finding.message.replace(OVERFLOWS, f"DeepSpeed accepts it, but {OVERFLOWS}")
    return finding._replace(effect=effect, message=message)


def _is_converted(pointer: str, runtime: Runtime) -> bool:
    """Return whether DeepSpeed converts the value to a float while it parses the config."""
    key = find(split(pointer))
    since = None if key is None else key.checked_since
    return key is not None and key.shape.finite and since is not None and runtime.version >= since
