"""Read a config, or the file that launches a program with one."""

import os
from collections.abc import Mapping
from typing import Any

from dsconfig.lazy_imports import lazy_imports
from dsconfig.source import Document, findings, reading

with lazy_imports():
    from dsconfig.facts import launches


def read(
    source: "str | os.PathLike[str] | Mapping[str, Any]", *, name: str | None = None
) -> Document:
    """Return the document of a ds_config: in a file, or one that the launched program ships or
    builds. Never raises for a user's mistake."""
    document = reading.read(source, name=name)
    if document.container and isinstance(source, str | os.PathLike):
        opened = os.fspath(source)
        document = document if opened == document.name else document._replace(opened=str(opened))
    if document.is_unreadable or findings.NO_CONFIG in {each.code for each in document.diagnostics}:
        return launches.with_config(document)
    return document
