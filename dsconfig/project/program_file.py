"""Config files for a target program: values that the program sets itself stay "auto"."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dsconfig.lazy_imports import lazy_imports
from dsconfig.runtimes.base import AUTO, RECOMPUTATION, AutoHandling, Instruction, Runtime
from dsconfig.schema import paths
from dsconfig.schema.paths import KeyPath

with lazy_imports():
    from dsconfig.cost import choices, search_space
    from dsconfig.runtimes import capabilities

if TYPE_CHECKING:
    from dsconfig.cost.search_space import Candidate

MODEL_DEPENDENT = (paths.REDUCE_BUCKET, paths.PREFETCH_BUCKET, paths.PERSISTENCE_THRESHOLD)


class ProgramFile(NamedTuple):
    """A config file and the settings that the program takes elsewhere."""

    config: dict[str, Any]
    opened: tuple[str, ...] = ()
    """Pointers left "auto" for the program."""
    steps: tuple[Instruction, ...] = ()


def for_program(
    program: Runtime, config: Mapping[str, Any], other_settings: Mapping[str, Any]
) -> ProgramFile:
    """Return the file of a concrete config; ``other_settings`` (by pointer) belong to no file."""
    opens = program.fills_auto and not program.reads_hjson
    opened = _filled_by_program(config, paths.ROOT, program) if opens else {}
    values = {
        pointer: value
        for pointer, value in opened.items()
        if pointer in program.set_elsewhere and value is not False
    }
    steps = program.instructions({**values, **other_settings}, {})
    return ProgramFile(
        cast("dict[str, Any]", _with_auto(config, paths.ROOT, opened)), tuple(opened), steps
    )


def of_candidate(candidate: "Candidate", program: Runtime) -> ProgramFile:
    """Return the config file of a candidate and the settings its program takes elsewhere."""
    config = choices.config_of(candidate.effective, recomputes=program.recomputes_from_config)
    config = search_space.with_settings(config, candidate.settings)
    settings = {
        **capabilities.outside(candidate.settings),
        **choices.recomputation_edits(candidate.choice.recompute),
    }
    if program.recomputes_from_config:
        settings.pop(RECOMPUTATION, None)
    return for_program(program, config, settings)


def _filled_by_program(value: Any, path: KeyPath, program: Runtime) -> dict[str, Any]:
    """Return the leaves that the program fills in, by pointer."""
    if not isinstance(value, Mapping):
        # The run determines these; stage, offload and the like keep the chosen value.
        is_run_setting = path[:1] != paths.ZERO or path in MODEL_DEPENDENT
        filled = is_run_setting and program.on_auto(path, {}) is AutoHandling.FILLED
        return {path.pointer: value} if filled else {}
    return {
        pointer: leaf
        for name, inner in cast(Mapping[str, Any], value).items()
        for pointer, leaf in _filled_by_program(inner, path / name, program).items()
    }


def _with_auto(value: Any, path: KeyPath, opened: Mapping[str, Any]) -> Any:
    if path.pointer in opened:
        return AUTO
    if not isinstance(value, Mapping):
        return value
    entries = cast(Mapping[str, Any], value).items()
    return {name: _with_auto(inner, path / name, opened) for name, inner in entries}
