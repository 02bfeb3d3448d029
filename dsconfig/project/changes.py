"""Changes that make a config fit: as data, as a diff of the file, and applied to it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsconfig.lazy_imports import lazy_imports
from dsconfig.runtimes.base import CONFIG, Instruction
from dsconfig.schema import find
from dsconfig.schema.paths import STAGE, ZERO
from dsconfig.source.pointer import value_at

with lazy_imports():
    from dsconfig.source import rewrite

if TYPE_CHECKING:
    from dsconfig.cost.remedies import Change
    from dsconfig.runtimes.base import Runtime
    from dsconfig.source import Document


def change_data(
    changes: "Sequence[Change]", runtime: "Runtime", document: "Document"
) -> list[dict[str, Any]]:
    """Return the changes in JSON form."""
    return [
        {
            "what": change.what,
            "fits": change.fits,
            "visible_bytes": change.option.device.visible_bytes,
            "needed_bytes": change.option.device.needed_bytes,
            "slowdown": change.slowdown,
            "edits": change.edits,
            "steps": [
                step._asdict() for step in runtime.instructions(change.edits, document.value)
            ],
            "diff": diff(change, runtime, document),
        }
        for change in changes
    ]


def changed(change: "Change", runtime: "Runtime", document: "Document") -> "Document":
    """Return the config with the part of a change that belongs in it."""
    edits = runtime.file_edits(change.edits, document.value)
    values = {pointer: value for pointer, value in edits.items() if value is not None}
    edited = _without_former_names(rewrite.with_values(document, values), edits)
    for pointer in edits.keys() - values.keys():
        edited = rewrite.without(edited, pointer)
    return _without_keys_of(value_at(document.value, STAGE, 0), edited)


def _without_keys_of(former: object, document: "Document") -> "Document":
    """Delete keys that have an effect at the former ZeRO stage, but not at the one now (DSC402)."""
    stage = value_at(document.value, STAGE, former)
    for key in list(document.value.get(ZERO.name, {})):
        known = find(ZERO / key)
        stages = known.declared.stages if known else ()
        if former in stages and stage not in stages:
            document = rewrite.without(document, (ZERO / key).pointer)
    return document


_FORMER = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_params"}


def _without_former_names(document: "Document", edits: Mapping[str, Any]) -> "Document":
    """Delete deprecated keys whose replacement is edited: DeepSpeed rejects both together."""
    for name, former in _FORMER.items():
        if any(pointer.startswith((ZERO / name).pointer) for pointer in edits):
            document = rewrite.without(document, (ZERO / former).pointer)
    return document


def diff(change: "Change", runtime: "Runtime", document: "Document") -> list[str]:
    """Return the changed lines of the file with a change."""
    before = rewrite.as_editable(document)
    return rewrite.changed_lines(before, changed(change, runtime, document))


def set_elsewhere(change: "Change", runtime: "Runtime", document: "Document") -> list[Instruction]:
    """Return the part of a change that does not belong in the config."""
    steps = runtime.instructions(change.edits, document.value)
    return [step for step in steps if step.where != CONFIG]
