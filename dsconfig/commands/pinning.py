"""``dsconfig diff --pin``: the file that means under one release what it meant under another."""

from dsconfig.commands.moves import new_defaults
from dsconfig.report import Applicability
from dsconfig.schema.meaning import meaning
from dsconfig.schema.version import Version
from dsconfig.source.document import Document
from dsconfig.source.edit import EDITABLE, Edits, apply_edits, delete_entry, insert_entry
from dsconfig.source.from_text import document_from_text
from dsconfig.source.pointer import join

OTHER_WORDS = ("deprecated-key", "renamed-key")
"""Rules whose safe fixes say the same in the words of a later release."""


def pinned(document: Document, before: Version, after: Version) -> Document:
    """The document with every value written out whose absence changes its meaning, what was not
    read taken out, and what was renamed under its new name. Comments and layout stay.

    Raises ValueError where the text is none that can be edited.
    """
    if document.text is None or document.format not in EDITABLE:
        raise ValueError(f"{document.name}: only JSON and HJSON are edited; convert it first")
    was = meaning(document.value, before)
    for path in was.unread:
        if path not in meaning(document.value, after).unread:
            document = _edited(document, delete_entry(document, join(*path)))
    document = _renewed(document, after)
    for move in new_defaults(was, meaning(document.value, after)):
        *above, name = move.pointer.split("/")
        if move.before is not None:
            document = _edited(document, insert_entry(document, "/".join(above), name, move.before))
    return document


def _renewed(document: Document, after: Version) -> Document:
    """The document with old words replaced, one at a time, since each moves the others."""
    from dsconfig import validate

    while True:
        found = validate(document, runtime="deepspeed", version=after).diagnostics
        fixes = [each.fix for each in found if each.name in OTHER_WORDS and each.fix is not None]
        safe = [fix for fix in fixes if fix.applicability is Applicability.SAFE]
        if not safe:
            return document
        document = _edited(document, safe[0].edits)


def _edited(document: Document, edits: Edits) -> Document:
    if not edits or document.text is None:
        return document
    return document_from_text(apply_edits(document.text, edits), document.name)
