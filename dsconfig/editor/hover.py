"""What an editor shows about the entry at a position: meaning, default, memory, findings."""

import json
from collections.abc import Iterator
from typing import NamedTuple

from dsconfig.editor.cursor import entry_at, is_on
from dsconfig.editor.open_file import OpenFile
from dsconfig.reference import deepspeed_docs, keys
from dsconfig.report import Position, Range, writers
from dsconfig.report.sizes import gib
from dsconfig.runtimes.base import AUTO
from dsconfig.schema import Key, KeyStatus, find
from dsconfig.source.pointer import lookup, split


class Hover(NamedTuple):
    """Markdown about the entry with this range."""

    markdown: str
    range: Range | None


def hover(file: OpenFile, position: Position) -> Hover | None:
    """Return what is known about the entry at a position, or None."""
    pointer = entry_at(file.document, position)
    if not pointer or not is_on(file.document, pointer, position):
        return None
    key = find(split(pointer), of_type=file.type_at(pointer))
    paragraphs = [] if key is None else list(_about(key, file, pointer))
    paragraphs += _findings(file, pointer)
    if not paragraphs:
        return None
    return Hover("\n\n".join(paragraphs), file.document.range(pointer, key=True))


def _about(key: Key, file: OpenFile, pointer: str) -> Iterator[str]:
    yield f"**{key.path}**: {key.expected}"
    yield key.doc
    facts = list(_lines(key, file, pointer))
    if facts:
        yield "\n".join(f"- {line}" for line in facts)
    address = deepspeed_docs.link(key.path)
    if address is not None:
        yield f"[DeepSpeed's documentation]({address})"


def _lines(key: Key, file: OpenFile, pointer: str) -> Iterator[str]:
    version = file.program.version
    if key.unit:
        yield f"unit: {key.unit}"
    if not key.is_block and not key.required:
        default = json.dumps(key.default_at(version), ensure_ascii=False)
        yield f"default in DeepSpeed {version}: {writers.code(default)}"
    if key.status is not KeyStatus.LIVE or not key.read_at(version):
        yield keys.supported_releases(key)
    if key.replaced_by:
        yield f"use instead: {writers.code(key.replaced_by)}"
    if lookup(file.document.value, pointer) == AUTO:
        yield from _auto(key, file, pointer)
    if key.memory:
        yield f"memory: {key.memory}"
    held = _held(file, pointer)
    if held:
        yield held


def _auto(key: Key, file: OpenFile, pointer: str) -> Iterator[str]:
    entry = file.filled(pointer)
    if entry is not None:
        yield f'"auto" becomes {writers.code(json.dumps(entry.value))}: {entry.rule}'
        return
    program = file.program.name
    yield from (f'"auto", {name}: {text}' for name, text in keys.auto(key) if name == program)


def _held(file: OpenFile, pointer: str) -> str:
    """Return the memory that a key causes for the model of the project; empty without one."""
    estimate, facts = file.estimate, file.facts
    if estimate is None or facts is None or facts.model is None:
        return ""
    option = estimate.options[0]
    held = [each for each in option.device.components if each.pointer == pointer]
    on_host = sum(each.bytes for each in option.host.components if each.pointer == pointer)
    if not held and not on_host:
        return ""
    at_peak = sum(each.bytes for each in held if option.device.peak_phase in each.phases)
    host = f", {gib(on_host, 2)} per node on the host" if on_host else ""
    return (
        f"{writers.code(facts.model.name)}: {gib(at_peak, 2)} per GPU in "
        f"{option.device.peak_phase}, the peak{host}"
    )


def _findings(file: OpenFile, pointer: str) -> Iterator[str]:
    for finding in file.checked.report.diagnostics:
        if finding.pointer == pointer and finding.file is None:
            yield f"[{finding.code}]({finding.url}) {writers.markdown(finding.message)}"
