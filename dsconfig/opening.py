"""Read a config, or the file that launches a program with one; of two, the one that is used."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsconfig.lazy_imports import lazy_imports
from dsconfig.schema.paths import HALF_PRECISIONS
from dsconfig.source import Document, findings, plugin_settings, reading
from dsconfig.source.pointer import is_block

with lazy_imports():
    from dsconfig import os_errors
    from dsconfig.facts import embedded_facts, launches

if TYPE_CHECKING:
    from dsconfig.facts import Facts


def read(
    source: "str | os.PathLike[str] | Mapping[str, Any]", *, name: str | None = None
) -> Document:
    """Return the document of a ds_config: in a file, or one that the launched program ships or
    builds. Never raises for a user's mistake."""
    document = reading.read(source, name=name)
    return completed(document, source if isinstance(source, str | os.PathLike) else None)


def completed(document: Document, source: "str | os.PathLike[str] | None") -> Document:
    """Return the document of the ds_config that the file ``source``, which was read, leads to."""
    codes = {each.code for each in document.diagnostics}
    is_without = document.is_unreadable or findings.NO_CONFIG in codes
    if (document.container or is_without) and source is not None:
        opened = str(os.fspath(source))
        is_other = opened != document.name and os_errors.is_file(opened)
        document = document._replace(opened=opened) if is_other else document
    if is_without:
        return launches.with_config(document)
    if document.launcher.settings:
        passed = launches.passed_in_code(document)
        if passed is not document:
            return passed
    return launches.as_written(document) if document.container else document


def _in_precision_of(facts: "Facts", document: Document) -> Document:
    """Return a config that accelerate generates, in the precision of the arguments, which replaces
    the launcher's."""
    wanted = next((name for name in HALF_PRECISIONS if facts.arguments.get(name) is True), None)
    others = HALF_PRECISIONS.keys() - {wanted}
    if wanted is None or not is_block(document.value) or others.isdisjoint(document.value):
        return document
    kept = {name: value for name, value in document.value.items() if name not in others}
    return document._replace(value={**kept, wanted: plugin_settings.switched_on(wanted)})


def used(document: Document, facts: "Facts | None") -> Document:
    """Return the config that a run uses: one that TrainingArguments name replaces that of
    accelerate's YAML, whose other settings remain (``opened``)."""
    if facts is None or not document.container:
        return document
    if facts.releases:
        document = launches.at_releases(document, facts)
    named = facts.arguments.get("deepspeed")
    if not isinstance(named, str) or not embedded_facts.is_accelerate_config(document.container):
        return _in_precision_of(facts, document) if document.is_generated else document
    beside = (facts.origins.get("training", ""), document.opened or document.name)
    for folder in (Path(), *(Path(file).parent for file in beside)):
        path = folder / named
        if os_errors.is_file(path):
            found = reading.read(path)
            is_same = os.path.realpath(path) == os.path.realpath(document.name)
            if is_same or found.is_unreadable:
                return document
            return found._replace(opened=document.opened or document.name)
    return _in_precision_of(facts, document) if document.is_generated else document
