"""Findings a file asks not to hear of, and requests that nothing answers to.

In strict JSON: ``"$dsconfig": {"ignore": ["DSC412"]}`` at top level, for the whole file. In
HJSON also ``// dsconfig: ignore[DSC412]`` behind an entry, or alone on the line above it.
A selector is a code, the start of one (``DSC4``), or a rule's name.
"""

from collections.abc import Iterable

from dsconfig.report import Diagnostic
from dsconfig.source.document import Document
from dsconfig.source.findings import SYNTAX, UNREADABLE
from dsconfig.source.pointer import lookup

SECTION = "$dsconfig"
REMARKS = "remarks"
"""What people write about their config, beside ``ignore``: read by nobody."""
NEVER_IGNORED = (UNREADABLE, SYNTAX)


def matches(selector: str, found: Diagnostic) -> bool:
    """Whether a code, a prefix of one or a rule's name speaks of this finding."""
    wanted = selector.strip()
    if wanted[:3].upper() == "DSC":
        return found.code.startswith(wanted.upper())
    return wanted.lower() == found.name


def without_ignored(
    document: Document, found: Iterable[Diagnostic], *, report_unused: bool = True
) -> tuple[Diagnostic, ...]:
    """The findings that the file does not ask to ignore, and one for each idle request."""
    in_values = lookup(document.value, f"/{SECTION}") is not None
    if not in_values and "dsconfig:" not in (document.text or ""):
        return tuple(found)
    from dsconfig.source.ignore_requests import requests, unused

    ignores, malformed = requests(document)
    kept: list[Diagnostic] = []
    for diagnostic in found:
        covering = ignores.covering(diagnostic)
        if not covering or diagnostic.code in NEVER_IGNORED:
            kept.append(diagnostic)
        for ignore in covering:
            ignore.used = True
    idle = (ignore for ignore in ignores.all if report_unused and not ignore.used)
    return (*kept, *malformed, *map(unused, idle))
