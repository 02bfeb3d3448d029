"""Config files for a target program: values that the program sets itself stay "auto"."""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from dsconfig.runtimes.base import AUTO, AutoHandling, Instruction, Runtime
from dsconfig.source.pointer import join

ZERO = "zero_optimization"
MODEL_DEPENDENT = (
    "reduce_bucket_size",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
)


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
    opened = _filled_by_program(config, (), program) if opens else {}
    values = {
        pointer: value
        for pointer, value in opened.items()
        if pointer in program.set_elsewhere and value is not False
    }
    steps = program.instructions({**values, **other_settings}, {})
    return ProgramFile(cast("dict[str, Any]", _with_auto(config, (), opened)), tuple(opened), steps)


def _filled_by_program(value: Any, path: tuple[str, ...], program: Runtime) -> dict[str, Any]:
    """Return the leaves that the program fills in, by pointer."""
    if not isinstance(value, Mapping):
        # The run determines these; stage, offload and the like keep the chosen value.
        is_run_setting = path[0] != ZERO or path[-1] in MODEL_DEPENDENT
        filled = is_run_setting and program.on_auto(path, {}) is AutoHandling.FILLED
        return {join(*path): value} if filled else {}
    return {
        pointer: leaf
        for name, inner in cast(Mapping[str, Any], value).items()
        for pointer, leaf in _filled_by_program(inner, (*path, name), program).items()
    }


def _with_auto(value: Any, path: tuple[str, ...], opened: Mapping[str, Any]) -> Any:
    if join(*path) in opened:
        return AUTO
    if not isinstance(value, Mapping):
        return value
    entries = cast(Mapping[str, Any], value).items()
    return {name: _with_auto(inner, (*path, name), opened) for name, inner in entries}
