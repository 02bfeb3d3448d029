"""The ``parallelism_config`` of accelerate's YAML: the parallel degrees.

accelerate's ParallelismConfig reads it from environment variables that the launcher sets.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dsconfig.mesh import Degrees
from dsconfig.source.plain import shown

if TYPE_CHECKING:
    from dsconfig.facts.training import TrainingFacts

BLOCK = "parallelism_config"
SIZES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")
SIZE_OF = {"tensor": "tp_size", "sequence": "sp_size"}
"""Setting of each degree that a run with DeepSpeed may have."""
BACKENDS = {"cp_backend": "torch", "sp_backend": "deepspeed"}
"""Settings with a single accepted value."""
OTHERS = (
    "cp_comm_strategy",
    "sp_seq_length",
    "sp_seq_length_is_variable",
    "sp_attn_implementation",
)


class Violation(NamedTuple):
    """A setting (empty: the block) that the program refuses, with the message and a suggestion."""

    setting: str
    message: str
    help: str


def yaml_name(setting: str) -> str:
    """Return the name of a setting in the YAML."""
    return f"{BLOCK}_{setting}"


KNOWN = frozenset(map(yaml_name, (*SIZES, *BACKENDS, *OTHERS)))


def of_sequences(degree: int, data: int) -> dict[str, int]:
    """Return the settings of a run that divides samples over ``degree`` ranks along the sequence,
    with ``data`` ranks that have different samples."""
    return {yaml_name("sp_size"): degree, yaml_name("dp_shard_size"): data}


def block_of(launch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the block; empty if there is none."""
    block = launch.get(BLOCK)
    return cast("Mapping[str, Any]", block) if isinstance(block, Mapping) else {}


def sizes_of(launch: Mapping[str, Any]) -> Mapping[str, int] | None:
    """Return the size of each setting (default 1); None without a block or if a size is invalid."""
    block = block_of(launch)
    sizes = {setting: block.get(yaml_name(setting), 1) for setting in SIZES}
    return sizes if block and all(map(_is_size, sizes.values())) else None


def with_sizes(
    degrees: Degrees,
    launch: Mapping[str, Any],
    run: "TrainingFacts | None",
    ranks: int | None,
    origins: Mapping[str, str],
) -> Degrees:
    """Return the degrees with those of accelerate's YAML, or of ``parallelism_config`` in
    TrainingArguments, if they divide the ranks.

    ``origins``: those of the facts; degrees that have one were given and are kept.
    """
    own = block_of(run.arguments) if run is not None else dict[str, Any]()
    sizes = sizes_of(launch) or dict[str, int]()
    added: dict[str, int] = {}
    for axis, setting in SIZE_OF.items():
        size = own.get(setting, sizes.get(setting, 1))
        if f"{axis}_parallel" not in origins and _is_size(size):
            added[axis] = size
    found = replace(degrees, **added)
    return found if ranks is None or found.divide(ranks) else degrees


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def violations(launch: Mapping[str, Any], processes: int | None) -> Iterator[Violation]:
    """Yield what makes a run with this number of processes fail."""
    block = block_of(launch)
    for setting in SIZES:
        value = block.get(yaml_name(setting), 1)
        if not _is_size(value):
            message = f"is {shown(value)}; it must be a positive integer"
            yield Violation(setting, message, "write the number of ranks")
    for setting, only in BACKENDS.items():
        value = block.get(yaml_name(setting), only)
        if value != only:
            yield Violation(
                setting, f"is {shown(value)}; only {only} is supported", f"write {only}"
            )
    sizes = sizes_of(launch)
    if sizes is not None:
        yield from _combined(sizes, processes)


def _combined(sizes: Mapping[str, int], processes: int | None) -> Iterator[Violation]:
    shard, replicate = sizes["dp_shard_size"], sizes["dp_replicate_size"]
    sequence = sizes["sp_size"]
    if sizes["cp_size"] > 1 and sequence > 1:
        yield Violation("cp_size", "cannot be combined with sp_size above 1", "keep one of them")
    elif (sizes["tp_size"] > 1 or sizes["cp_size"] > 1) and replicate > 1 and shard == 1:
        message = "above 1 with tp_size or cp_size requires dp_shard_size above 1"
        yield Violation("dp_replicate_size", message, "write dp_shard_size instead")
    elif processes is None:
        return
    elif sequence > 1:
        ranks = processes // sequence
        if ranks * sequence != processes:
            message = f"is {sequence}, but {processes} processes are not a multiple of it"
            yield Violation("sp_size", message, "write a divisor of the number of processes")
        elif shard * replicate != ranks:
            message = (
                f"x dp_replicate_size is {shard * replicate}, but {processes} processes with "
                f"sp_size {sequence} leave {ranks}: the batch sizes do not match"
            )
            suggestion = f"write {ranks // replicate}" if ranks % replicate == 0 else ""
            help = suggestion or f"write {ranks}, and dp_replicate_size 1"
            yield Violation("dp_shard_size", message, help)
    elif prod(sizes.values()) not in (1, processes):
        message = f"multiplies to {prod(sizes.values())}, but there are {processes} processes"
        yield Violation("", message, "make the product equal to the number of processes")
