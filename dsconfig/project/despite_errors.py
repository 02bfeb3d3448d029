"""The concrete config of a file, also of one with errors, and whether its run can start."""

from typing import TYPE_CHECKING, Any, NamedTuple

from dsconfig import examination
from dsconfig.examination import MISSING_FACT
from dsconfig.report import Report
from dsconfig.resolver import draft
from dsconfig.runtimes.base import AUTO, AutoHandling
from dsconfig.schema.paths import STAGE, KeyPath
from dsconfig.source.pointer import copied, is_block, split, value_at

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.runtimes.base import Runtime
    from dsconfig.runtimes.effective import Effective
    from dsconfig.source import Document


class Concrete(NamedTuple):
    """The errors of a file and its concrete config, None if there is none.

    ``notes``: sentences about values that are not those of the file.
    """

    errors: Report
    effective: "Effective | None" = None
    notes: tuple[str, ...] = ()


def concrete(document: "Document", facts: "Facts", program: "Runtime") -> Concrete:
    """Return the errors of a file and its concrete config, if it can be determined."""
    result = examination.resolution(document, facts, program)
    errors = Report(Report(result.diagnostics).errors)
    if result.effective is not None:
        return Concrete(errors, result.effective)
    return _repaired(document, errors, facts, program)


def prevents_start(errors: Report) -> bool:
    """Return whether the program stops at one of the errors; a missing fact does not stop it."""
    return any(error.code != MISSING_FACT for error in errors.refusals)


def _repaired(document: "Document", errors: Report, facts: "Facts", program: "Runtime") -> Concrete:
    """Return the concrete config of a file that the program rejects, if it can be determined.

    A rejected value that cannot be used is replaced by the one of the program. Without a valid
    stage there is no estimate: any other stage would give an unrelated number.
    """
    stage = ("DSC031", STAGE.pointer)
    if document.is_broken or stage in ((error.code, error.pointer) for error in errors.errors):
        return Concrete(errors)
    result = examination.resolution(document, facts, program)
    effective = result.derive()
    if effective is not None and effective.batch is not None:
        return Concrete(errors, effective)
    own = (error.pointer for error in errors.errors if error.file is None)
    rejected = [split(pointer.removesuffix("/type")) for pointer in own if pointer]
    reduced = document._replace(value=_without(document.value, rejected, program))
    result = examination.resolution(reduced, facts, program)
    effective = result.effective or result.derive() or effective
    still_open: list[KeyPath] = []
    if effective is None:  # facts are missing: DeepSpeed's defaults for what is still "auto"
        still_open = draft.auto_paths(reduced.value)
        reduced = reduced._replace(value=_deleted(reduced.value, still_open))
        effective = examination.resolution(reduced, facts, program).derive()
    if effective is None:
        return Concrete(errors)
    notes: list[str] = []
    if rejected:
        names = ", ".join(dict.fromkeys(map(str, rejected)))
        notes.append(f"estimated without the rejected values of {names}")
    if still_open:
        names = ", ".join(map(str, still_open))
        default = "estimated with the default of DeepSpeed for"
        notes.append(f'{default} {names} ("auto" is not resolved)')
    return Concrete(errors, effective, tuple(notes))


def _without(config: dict[str, Any], keys: list[KeyPath], program: "Runtime") -> dict[str, Any]:
    """Return a copy of a config with "auto", or without an entry, at each key."""
    filled = [path for path in keys if program.on_auto(path, config) is AutoHandling.FILLED]
    reduced = _deleted(config, [path for path in keys if path not in filled])
    for path in filled:
        block = value_at(reduced, path.parent)
        if is_block(block):
            block[path.name] = AUTO
    return reduced


def _deleted(config: dict[str, Any], keys: list[KeyPath]) -> dict[str, Any]:
    """Return a copy of a config without the entries of ``keys``."""
    reduced = copied(config)
    for path in keys:
        block = value_at(reduced, path.parent)
        if is_block(block):
            block.pop(path.name, None)
    return reduced
