"""How many ranks share a layer or a sequence: what the flags say, else what the file says."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from dsconfig.facts import Facts


def passes_an_mpu(facts: Facts) -> bool:
    """Whether flags name a degree: then the script splits the ranks itself, with a
    model-parallel unit (Megatron, Ulysses, a PipelineModule), and DeepSpeed asks that for the
    ranks that see different samples.
    """
    degrees = (facts.tensor_parallel, facts.sequence_parallel, facts.pipeline_parallel)
    return max(degrees) > 1


def with_degrees(facts: Facts, config: Mapping[str, Any]) -> Facts:
    """The facts with ``tensor_parallel.autotp_size`` and ``sequence_parallel_size`` of a config,
    where no flag says otherwise and the ranks can be split by them.
    """
    found: dict[str, int] = {}
    if facts.tensor_parallel == 1:
        block = config.get("tensor_parallel")
        size = cast(Mapping[str, Any], block).get("autotp_size") if _is_block(block) else None
        found["tensor_parallel"] = _degree(size)
    if facts.sequence_parallel == 1:
        found["sequence_parallel"] = _degree(config.get("sequence_parallel_size"))
    found = {name: size for name, size in found.items() if size > 1}
    ranks = facts.world_size
    together = facts.pipeline_parallel
    for size in (found | _given(facts, found)).values():
        together *= size
    if not found or (ranks is not None and ranks % together):
        return facts
    return replace(facts, **found)


def _given(facts: Facts, found: Mapping[str, int]) -> dict[str, int]:
    given = {
        "tensor_parallel": facts.tensor_parallel,
        "sequence_parallel": facts.sequence_parallel,
    }
    return {name: size for name, size in given.items() if name not in found}


def _is_block(value: object) -> bool:
    return isinstance(value, Mapping)


def _degree(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 1
