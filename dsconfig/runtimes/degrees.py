"""Parallel degrees, from flags or else from the config.

[Note: pipeline.stages] DeepSpeed does not read it: the script passes the number of stages to
PipelineModule, which supports ZeRO up to stage 1. A config that sets it means the same number, so
memory estimates use it and print that they do.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dsconfig.facts import Facts
from dsconfig.mesh import Degrees
from dsconfig.runtimes.capabilities import TABLE
from dsconfig.schema.markers import integral
from dsconfig.source.pointer import is_block


def of_the_script(facts: Facts, config: Mapping[str, Any]) -> Facts:
    """Return the facts without the tensor-parallel degree that the config sets as well.

    It splits layers with AutoTP, whose ranks all count in DeepSpeed's batch arithmetic. With other
    degrees the script splits the ranks itself with a model-parallel unit (Megatron, Ulysses, a
    PipelineModule), from which DeepSpeed reads the number of data-parallel ranks.
    """
    degree = facts.degrees.tensor
    if degree == 1 or _block(config, "tensor_parallel").get("autotp_size") != degree:
        return facts
    return replace(facts, degrees=replace(facts.degrees, tensor=1))


def with_degrees(facts: Facts, config: Mapping[str, Any]) -> Facts:
    """Return the facts with the degrees of a config, if they divide the ranks; flags win.

    These are ``tensor_parallel.autotp_size``, ``sequence_parallel_size``, ``pipeline.stages`` and,
    if AutoEP is enabled, ``expert_parallel.autoep_size``.
    """
    flags = facts.degrees
    degrees = Degrees(
        tensor=_degree(flags.tensor, _block(config, "tensor_parallel").get("autotp_size")),
        sequence=_degree(flags.sequence, config.get("sequence_parallel_size")),
        pipeline=_degree(flags.pipeline, stages_of(config)),
        expert=_degree(flags.expert, expert_degree(config)),
    )
    ranks = facts.world_size
    divides = ranks is None or degrees.divide(ranks)
    return replace(facts, degrees=degrees) if divides else facts


def with_executed_degrees(facts: Facts, config: Mapping[str, Any]) -> Facts:
    """Return the facts with the degrees of a config that dsengine executes; flags win."""
    executed = {
        key
        for axis in TABLE["dsengine"].values()
        for key in (pointer.split("/")[1] for pointer in axis.keys)
    }
    return with_degrees(facts, {key: config[key] for key in executed if key in config})


def expert_degree(config: Mapping[str, Any]) -> int:
    """Return the ranks over which AutoEP divides the experts; 1 if it is disabled."""
    block = _block(config, "expert_parallel")
    return _degree(1, block.get("autoep_size")) if block.get("enabled") is True else 1


def stages_of(config: Mapping[str, Any]) -> int:
    """Return the pipeline stages in the config; 1 if not set. [Note: pipeline.stages]"""
    stage = _block(config, "zero_optimization").get("stage", 0)
    return _degree(1, _block(config, "pipeline").get("stages")) if stage in (0, 1) else 1


def recomputed_blocks(config: Mapping[str, Any]) -> int:
    """Return the blocks of a PipelineModule per checkpoint; 0 if it keeps all activations."""
    interval = _block(config, "pipeline").get("activation_checkpoint_interval")
    return interval if type(interval) is int and interval > 0 else 0


def _block(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    block = config.get(name)
    return block if is_block(block) else {}


def _degree(flag: int, value: object) -> int:
    """Return the degree of a flag above 1, else the one written in a config."""
    value = integral(value)
    return value if flag == 1 and type(value) is int and value > 1 else flag
