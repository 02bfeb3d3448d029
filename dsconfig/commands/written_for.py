"""A config as the program that reads it wants it: what that program sets itself stays "auto"."""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from dsconfig.runtimes.base import AUTO, AutoHandling, Instruction, Runtime
from dsconfig.source.pointer import join

ZERO = "zero_optimization"
OF_THE_MODEL = (
    "reduce_bucket_size",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
)


class Written(NamedTuple):
    """A file, and what is to be set beside it for the run that was chosen."""

    config: dict[str, Any]
    opened: tuple[str, ...] = ()
    """Pointers that were left to the program."""
    steps: tuple[Instruction, ...] = ()


def written_for(program: Runtime, config: Mapping[str, Any], beside: Mapping[str, Any]) -> Written:
    """A concrete config for ``program``; ``beside`` are values by pointer that no file sets."""
    opens = program.fills_auto and not program.reads_hjson
    opened = _left_open(config, (), program) if opens else {}
    values = {
        pointer: value for pointer, value in opened.items() if pointer in program.set_elsewhere
    }
    steps = program.instructions({**values, **beside}, {})
    return Written(cast("dict[str, Any]", _with_auto(config, (), opened)), tuple(opened), steps)


def _left_open(value: Any, path: tuple[str, ...], program: Runtime) -> dict[str, Any]:
    """The leaves that the program fills, by pointer."""
    if not isinstance(value, Mapping):
        # What the run decides; stage, offload and the like stay as they were chosen.
        is_of_the_run = path[0] != ZERO or path[-1] in OF_THE_MODEL
        filled = is_of_the_run and program.on_auto(path, {}) is AutoHandling.FILLED
        return {join(*path): value} if filled else {}
    return {
        pointer: held
        for name, inner in cast(Mapping[str, Any], value).items()
        for pointer, held in _left_open(inner, (*path, name), program).items()
    }


def _with_auto(value: Any, path: tuple[str, ...], opened: Mapping[str, Any]) -> Any:
    if join(*path) in opened:
        return AUTO
    if not isinstance(value, Mapping):
        return value
    entries = cast(Mapping[str, Any], value).items()
    return {name: _with_auto(inner, (*path, name), opened) for name, inner in entries}
