"""Tensor, sequence and pipeline parallel degrees, from flags or else from the config.

[Note: pipeline.stages] DeepSpeed does not read it: the script passes the number of stages to
PipelineModule, which supports ZeRO up to stage 1. A config that sets it means the same number, so
memory estimates use it and print that they do.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dsconfig.facts import Facts
from dsconfig.source.pointer import is_block


def passes_an_mpu(facts: Facts) -> bool:
    """Return whether a flag sets a degree.

    The script then splits the ranks itself with a model-parallel unit (Megatron, Ulysses, a
    PipelineModule), from which DeepSpeed reads the number of data-parallel ranks.
    """
    degrees = (facts.tensor_parallel, facts.sequence_parallel, facts.pipeline_parallel)
    return max(degrees) > 1


def with_degrees(facts: Facts, config: Mapping[str, Any]) -> Facts:
    """Return the facts with the degrees of a config, if they divide the ranks; flags win.

    These are ``tensor_parallel.autotp_size``, ``sequence_parallel_size`` and ``pipeline.stages``.
    """
    found: dict[str, int] = {}
    if facts.tensor_parallel == 1:
        found["tensor_parallel"] = _degree(_block(config, "tensor_parallel").get("autotp_size"))
    if facts.sequence_parallel == 1:
        found["sequence_parallel"] = _degree(config.get("sequence_parallel_size"))
    if facts.pipeline_parallel == 1:
        found["pipeline_parallel"] = stages_of(config)
    found = {name: size for name, size in found.items() if size > 1}
    split = replace(facts, **found)
    ranks = facts.world_size
    together = split.tensor_parallel * split.sequence_parallel * split.pipeline_parallel
    return facts if not found or (ranks is not None and ranks % together) else split


def stages_of(config: Mapping[str, Any]) -> int:
    """Return the pipeline stages in the config; 1 if not set. [Note: pipeline.stages]"""
    stage = _block(config, "zero_optimization").get("stage", 0)
    return _degree(_block(config, "pipeline").get("stages")) if stage in (0, 1) else 1


def recomputed_blocks(config: Mapping[str, Any]) -> int:
    """Return the blocks of a PipelineModule per checkpoint; 0 if it keeps all activations."""
    interval = _block(config, "pipeline").get("activation_checkpoint_interval")
    return interval if type(interval) is int and interval > 0 else 0


def _block(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    block = config.get(name)
    return block if is_block(block) else {}


def _degree(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 1
