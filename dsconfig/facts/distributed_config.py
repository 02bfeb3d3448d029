"""The ``DistributedConfig`` of transformers 5, with which ``from_pretrained`` shards a model.

Scripts pass it in code; files contain it in the ``model_init_kwargs`` of TRL's arguments, or in a
block of its own that a script passes on.
"""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, cast

from dsconfig.facts.parallelism import Violation
from dsconfig.source.plain import shown

BLOCK = "distributed_config"
MODEL_INIT = "model_init_kwargs"
RANKS = ("tp_size", "fsdp_size", "dp_replicate_size", "pp_size")
"""Sizes whose product is the number of processes."""
SIZES = (*RANKS, "ep_size")
PLANS = ("fsdp_plan", "ep_plan")
KNOWN = frozenset(
    (
        *SIZES,
        *PLANS,
        "tp_plan",
        "enable_sequence_parallel",
        "enable_expert_parallel",
        "fsdp_cpu_offload",
        "fsdp_mixed_precision",
        "ep_implementation",
    )
)


def block_path(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the path of the block among the arguments; empty if there is none."""
    inner = arguments.get(MODEL_INIT)
    if isinstance(inner, Mapping) and isinstance(cast(Any, inner).get(BLOCK), Mapping):
        return (MODEL_INIT, BLOCK)
    return (BLOCK,) if isinstance(arguments.get(BLOCK), Mapping) else ()


def block_of(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the block; empty if there is none."""
    value: Any = arguments
    path = block_path(arguments)
    for name in path:
        value = value[name]
    return cast("Mapping[str, Any]", value) if path else {}


def sizes(block: Mapping[str, Any], processes: int | None) -> Mapping[str, int] | None:
    """Return every size with defaults; None if one is invalid or cannot be derived."""
    values = {name: 1 if block.get(name) is None else block[name] for name in SIZES}
    if not all(isinstance(size, int) and size >= 1 for size in values.values()):
        return None
    if _derives(block):
        others = prod(values[name] for name in RANKS)
        if processes is None or processes % others:
            return None
        values["tp_size"] = processes // others
    if block.get("enable_expert_parallel") and block.get("ep_size") is None:
        values["ep_size"] = values["tp_size"]
    return values


def _derives(block: Mapping[str, Any]) -> bool:
    """Return whether tp_size is derived from the other sizes and the number of processes."""
    return block.get("tp_size") is None and block.get("tp_plan") is not None


def divides(block: Mapping[str, Any], processes: int | None) -> bool:
    """Return whether the model is sharded over ranks."""
    values = sizes(block, processes)
    return values is not None and prod(values[name] for name in RANKS) > 1


def violations(block: Mapping[str, Any], processes: int | None) -> Iterator[Violation]:
    """Yield what makes ``from_pretrained`` raise for this number of processes."""
    for name in SIZES:
        value = block.get(name)
        if value is not None and (not isinstance(value, int) or value < 1):
            yield Violation(
                name,
                f"is {shown(value)}; it must be a positive integer",
                "write the number of ranks",
            )
    for name in PLANS:
        if block.get(name) is not None and not isinstance(block[name], Mapping):
            message = f"is {shown(block[name])}; it must map modules to rules"
            yield Violation(name, message, "delete it: the model has its own plan")
    values = sizes(block, processes)
    if values is not None:
        yield from _combined(values, processes)
    elif processes is not None and _derives(block) and sizes({**block, "tp_size": 1}, None):
        message = f"leaves no integer tp_size: {processes} is not a multiple of the other sizes"
        yield Violation("tp_plan", message, "write sizes that divide the number of processes")


def _combined(values: Mapping[str, int], processes: int | None) -> Iterator[Violation]:
    tensor, shard, experts = values["tp_size"], values["fsdp_size"], values["ep_size"]
    if experts > 1 and experts % tensor:
        message = f"is {experts}; it must be a multiple of tp_size, which is {tensor}"
        yield Violation("ep_size", message, f"write {tensor}")
    elif experts > 1 and shard * tensor % experts:
        message = f"is {experts}; it must divide fsdp_size x tp_size, which is {shard * tensor}"
        yield Violation("ep_size", message, f"write {shard * tensor}")
    if values["dp_replicate_size"] * shard > 1 and values["pp_size"] > 1:
        message = "cannot be combined with fsdp_size or dp_replicate_size"
        yield Violation("pp_size", message, "keep one of them")
    together = prod(values[name] for name in RANKS)
    if processes is not None and together not in (1, processes):
        above = [name for name in RANKS if values[name] > 1]
        factors = " x ".join(above)
        verb = "multiply to" if len(above) > 1 else "is"
        message = f"{verb} {together}, but there are {processes} processes"
        yield Violation(factors, message, "make the product equal to the number of processes")
