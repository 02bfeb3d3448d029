"""The ``DistributedConfig`` of transformers 5: how ``from_pretrained`` itself divides a model.

A script passes it in code; files hold it in the ``model_init_kwargs`` of TRL's arguments, or in a
block of its own that a script hands on.
"""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, cast

from dsconfig.facts.parallelism import Violation

BLOCK = "distributed_config"
MODEL_INIT = "model_init_kwargs"
RANKS = ("tp_size", "fsdp_size", "dp_replicate_size", "pp_size")
"""Sizes that multiply to the number of processes."""
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


def place_of(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """The path of the block among arguments; empty where there is none."""
    inner = arguments.get(MODEL_INIT)
    if isinstance(inner, Mapping) and isinstance(cast(Any, inner).get(BLOCK), Mapping):
        return (MODEL_INIT, BLOCK)
    return (BLOCK,) if isinstance(arguments.get(BLOCK), Mapping) else ()


def block_of(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The block; empty where there is none."""
    held: Any = arguments
    path = place_of(arguments)
    for name in path:
        held = held[name]
    return cast("Mapping[str, Any]", held) if path else {}


def sizes(block: Mapping[str, Any], processes: int | None) -> Mapping[str, int] | None:
    """Every size, defaults filled in; None where one is wrong or cannot be derived."""
    given = {name: 1 if block.get(name) is None else block[name] for name in SIZES}
    if not all(isinstance(size, int) and size >= 1 for size in given.values()):
        return None
    if _derives(block):
        others = prod(given[name] for name in RANKS)
        if processes is None or processes % others:
            return None
        given["tp_size"] = processes // others
    if block.get("enable_expert_parallel") and block.get("ep_size") is None:
        given["ep_size"] = given["tp_size"]
    return given


def _derives(block: Mapping[str, Any]) -> bool:
    """Whether tp_size is what the other sizes leave of the processes."""
    return block.get("tp_size") is None and block.get("tp_plan") is not None


def divides(block: Mapping[str, Any], processes: int | None) -> bool:
    """Whether ranks hold parts of the model."""
    found = sizes(block, processes)
    return found is not None and prod(found[name] for name in RANKS) > 1


def violations(block: Mapping[str, Any], processes: int | None) -> Iterator[Violation]:
    """Where ``from_pretrained`` stops on so many processes."""
    for name in SIZES:
        value = block.get(name)
        if value is not None and (not isinstance(value, int) or value < 1):
            yield Violation(
                name, f"is {value!r}, and must be an integer of 1 or more", "write how many ranks"
            )
    for name in PLANS:
        if block.get(name) is not None and not isinstance(block[name], Mapping):
            said = f"is {block[name]!r}, and must map modules to rules"
            yield Violation(name, said, "delete it: the model has a plan of its own")
    found = sizes(block, processes)
    if found is not None:
        yield from _together(found, processes)
    elif processes is not None and _derives(block) and sizes({**block, "tp_size": 1}, None):
        said = f"leaves no whole tp_size: {processes} processes are no multiple of the other sizes"
        yield Violation("tp_plan", said, "write sizes that divide the number of processes")


def _together(found: Mapping[str, int], processes: int | None) -> Iterator[Violation]:
    tensor, shard, experts = found["tp_size"], found["fsdp_size"], found["ep_size"]
    if experts > 1 and experts % tensor:
        said = f"is {experts}, and must be a multiple of tp_size {tensor}"
        yield Violation("ep_size", said, f"write {tensor}")
    elif experts > 1 and shard * tensor % experts:
        said = f"is {experts}, and must divide fsdp_size x tp_size, {shard * tensor}"
        yield Violation("ep_size", said, f"write {shard * tensor}")
    if found["dp_replicate_size"] * shard > 1 and found["pp_size"] > 1:
        yield Violation("pp_size", "does not go with fsdp_size or dp_replicate_size", "keep one")
    together = prod(found[name] for name in RANKS)
    if processes is not None and together not in (1, processes):
        above = [name for name in RANKS if found[name] > 1]
        factors = " x ".join(above)
        verb = "multiply to" if len(above) > 1 else "is"
        said = f"{verb} {together}, and there are {processes} processes"
        yield Violation(factors, said, "let the sizes multiply to the number of processes")
