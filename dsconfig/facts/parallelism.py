"""The ``parallelism_config`` of accelerate's YAML: how ranks are divided among its kinds.

accelerate's ParallelismConfig reads it from variables that the launcher sets.
"""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple, cast

BLOCK = "parallelism_config"
SIZES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")
BACKENDS = {"cp_backend": "torch", "sp_backend": "deepspeed"}
"""Each has one value that accelerate takes."""
OTHERS = (
    "cp_comm_strategy",
    "sp_seq_length",
    "sp_seq_length_is_variable",
    "sp_attn_implementation",
)


class Violation(NamedTuple):
    """What a program stops at: a setting (empty: the block), and what is wrong with it."""

    setting: str
    said: str
    help: str


def written(setting: str) -> str:
    """A setting's name as it stands in the YAML."""
    return f"{BLOCK}_{setting}"


KNOWN = frozenset(map(written, (*SIZES, *BACKENDS, *OTHERS)))


def block_of(launch: Mapping[str, Any]) -> Mapping[str, Any]:
    """The block; empty where there is none."""
    block = launch.get(BLOCK)
    return cast("Mapping[str, Any]", block) if isinstance(block, Mapping) else {}


def degrees(launch: Mapping[str, Any]) -> Mapping[str, int] | None:
    """The sizes by setting, 1 where one is absent; None without a block, or with a wrong size."""
    block = block_of(launch)
    sizes = {setting: block.get(written(setting), 1) for setting in SIZES}
    return sizes if block and all(map(_is_size, sizes.values())) else None


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def violations(launch: Mapping[str, Any], processes: int | None) -> Iterator[Violation]:
    """Where a run of so many processes stops."""
    block = block_of(launch)
    for setting in SIZES:
        value = block.get(written(setting), 1)
        if not _is_size(value):
            yield Violation(setting, f"is {value!r}, and must be 1 or more", "write how many ranks")
    for setting, only in BACKENDS.items():
        value = block.get(written(setting), only)
        if value != only:
            yield Violation(setting, f"is {value!r}, and there is one: {only}", f"write {only}")
    sizes = degrees(launch)
    if sizes is not None:
        yield from _together(sizes, processes)


def _together(sizes: Mapping[str, int], processes: int | None) -> Iterator[Violation]:
    shard, replicate = sizes["dp_shard_size"], sizes["dp_replicate_size"]
    sequence = sizes["sp_size"]
    if sizes["cp_size"] > 1 and sequence > 1:
        yield Violation("cp_size", "does not go with sp_size above 1", "keep one of them")
    elif (sizes["tp_size"] > 1 or sizes["cp_size"] > 1) and replicate > 1 and shard == 1:
        said = "above 1 goes with tp_size or cp_size only where dp_shard_size is above 1"
        yield Violation("dp_replicate_size", said, "write dp_shard_size in its place")
    elif processes is None:
        return
    elif sequence > 1:
        ranks = processes // sequence
        if ranks * sequence != processes:
            said = f"is {sequence}, and {processes} processes are no multiple of it"
            yield Violation("sp_size", said, "write a divisor of the number of processes")
        elif shard * replicate != ranks:
            said = (
                f"x dp_replicate_size is {shard * replicate}, and {processes} processes with "
                f"sp_size {sequence} leave {ranks}: the batch sizes do not match"
            )
            mended = f"write {ranks // replicate}" if ranks % replicate == 0 else ""
            help = mended or f"write {ranks}, and dp_replicate_size 1"
            yield Violation("dp_shard_size", said, help)
    elif prod(sizes.values()) not in (1, processes):
        said = f"multiplies to {prod(sizes.values())}, and there are {processes} processes"
        yield Violation("", said, "let the sizes multiply to the number of processes")
