"""Edit a config so that an upgrade does not change its meaning."""

from dsconfig.comparison.read_meaning import read_meaning
from dsconfig.comparison.upgrades import new_defaults
from dsconfig.report import Applicability
from dsconfig.schema.version import Version
from dsconfig.source.document import Document
from dsconfig.source.edit import EDITABLE, Edits, apply_edits, delete_entry, insert_entry
from dsconfig.source.from_text import document_from_text

RENAMING_RULES = ("deprecated-key", "renamed-key")
"""Rules whose safe fixes rename keys without a change in meaning."""


def pinned(document: Document, before: Version, after: Version) -> Document:
    """Return the document with changed defaults written out and renamed keys renamed.

    Keys that the old release did not read are removed; comments and layout are kept. Raises
    ValueError for a format that cannot be edited.
    """
    if document.text is None or document.format not in EDITABLE:
        raise ValueError(f"{document.name}: only JSON and HJSON can be edited; convert it first")
    was = read_meaning(document.value, before)
    for path in was.unread:
        if path not in read_meaning(document.value, after).unread:
            document = _edited(document, delete_entry(document, path.pointer))
    document = _renamed(document, after)
    for change in new_defaults(was, read_meaning(document.value, after)):
        *parents, name = change.pointer.split("/")
        if change.before is not None:
            entry = insert_entry(document, "/".join(parents), name, change.before)
            document = _edited(document, entry)
    return document


def _renamed(document: Document, after: Version) -> Document:
    """Apply renaming fixes one at a time, because each moves the positions of the others."""
    from dsconfig import validate

    while True:
        findings = validate(document, runtime="deepspeed", version=after).diagnostics
        fixes = [
            finding.fix for finding in findings if finding.name in RENAMING_RULES and finding.fix
        ]
        safe = [fix for fix in fixes if fix.applicability is Applicability.SAFE]
        if not safe:
            return document
        document = _edited(document, safe[0].edits)


def _edited(document: Document, edits: Edits) -> Document:
    if not edits or document.text is None:
        return document
    return document_from_text(apply_edits(document.text, edits), document.name)
