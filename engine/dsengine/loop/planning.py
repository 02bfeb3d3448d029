"""Make a plan for this model and these ranks from a config or from an existing plan."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsInt

import torch
from torch import nn

import dsconfig
from dsconfig import (
    Degrees,
    DeviceFacts,
    Diagnostic,
    Facts,
    ModelTree,
    Plan,
    Status,
    TrainingFacts,
    launch_env,
    nearest_degree,
)
from dsconfig.features.table import DEGREES, FEATURES
from dsengine.communication.environment import node_count
from dsengine.loop.misuse import ArgumentError
from dsengine.observation import events
from dsengine.observation.printing import print_rank0
from dsengine.parallel.experts_plan import experts_of
from dsengine.parallel.pipeline.module import PipelineModule
from dsengine.parallel.tensor import layers_of
from dsengine.parameters.model_tree import describe
from dsengine.parameters.quantized import base_weights_of
from dsengine.tiers import files, memory
from dsengine.tiers.memory import GIBI
from dsengine.topology import current, world_size

NODE, PROCESS = "this node has", "this process may use"

Config = str | Path | Mapping[str, Any]


class DeepSpeedConfigError(ArgumentError):
    """The config cannot be run; the message lists every finding.

    Also an AssertionError, which DeepSpeed raises for some keys.
    """


def plan_for(
    config: Config,
    model: nn.Module,
    optimizer: Any = None,
    lr_scheduler: Any = None,
    training: TrainingFacts | None = None,
    sequence: int = 1,
) -> Plan:
    """Read, validate, resolve and plan.

    ``sequence``: the ranks that share samples, if an ``mpu`` divides them.

    Raises ValueError listing everything that is refused; other findings are printed.
    """
    document = dsconfig.read(_without_infinity(config))
    tensor = _requested_degree(document.value)
    facts = facts_of(model, optimizer, lr_scheduler, training, sequence, tensor)
    report = dsconfig.validate(document, facts, runtime="dsengine")
    refuse(report.refusals, document.name)
    resolution = dsconfig.resolve(document, facts)
    refuse(resolution.refusals, document.name)
    print_findings([*report.errors, *report.warnings, *resolution.diagnostics])
    made = dsconfig.plan(resolution, facts)
    if sequence > 1 and made.mesh.tensor > 1:
        raise ValueError(
            "the mpu divides samples over neighboring ranks, which tensor_parallel.autotp_size "
            f"{made.mesh.tensor} uses for split layers: pass no mpu, and set sequence_parallel_size"
        )
    return made


_SPLIT_MARKS = ("tensor_model_parallel", "model_parallel")
"""Attributes with which Megatron and DeepSpeed mark parameters split across ranks."""
_TENSOR_DEGREES = (
    "get_model_parallel_world_size",
    "get_tensor_model_parallel_world_size",
)
_DEGREES = (
    *_TENSOR_DEGREES,
    "get_pipeline_model_parallel_world_size",
    "get_pipe_parallel_world_size",
    "get_sequence_parallel_world_size",
)
"""Methods an ``mpu`` may have, by Megatron's and DeepSpeed's names."""


def refuse_split_layers(model: nn.Module, mpu: Any) -> None:
    """Raise ValueError if ranks split layers, or samples in a way of their own."""
    if shared_samples(mpu) > 1:
        return
    found = [f"mpu.{name}() is {n}" for name in _DEGREES if (n := _degree(mpu, name)) > 1]
    # Megatron marks them even if one rank has all of each; then the mpu shows it.
    marks = () if any(hasattr(mpu, name) for name in _TENSOR_DEGREES) else _SPLIT_MARKS
    found += [
        f"{name!r} is marked {mark}"
        for name, parameter in model.named_parameters()
        for mark in marks
        if getattr(parameter, mark, False)
    ][:1]
    if found:
        raise ValueError(f"{found[0]}: {FEATURES['foreign_mpu'].text}")


def shared_samples(mpu: Any, mesh_param: Any = None) -> int:
    """Return the ranks over which samples are divided: 1, or as dsengine's own ``mpu`` or
    ``mesh_param``, (data, sequence), specifies. Raises ValueError for a mesh of other ranks."""
    if mesh_param is not None and len(mesh_param) > 1:
        if math.prod(mesh_param) != world_size() or len(mesh_param) > 2:
            raise ValueError(
                f"mesh_param is {tuple(mesh_param)}, which is not (data, sequence) parallel sizes "
                f"of {world_size()} ranks"
            )
        return int(mesh_param[1])
    group = getattr(mpu, "get_sequence_parallel_group", None)
    if group is None or (size := current().size("sequence")) == 1:
        return 1
    return size if group() is current().group("sequence") else 1


def _degree(mpu: Any, name: str) -> int:
    degree = getattr(mpu, name, lambda: 1)()
    if not isinstance(degree, SupportsInt):
        raise ArgumentError(f"initialize(mpu=...): mpu.{name}() returns {degree!r}, not a number")
    return int(degree)


def _without_infinity(config: Config) -> Config:
    """Replace accelerate's infinite steps_per_print with null, as a file would."""
    if isinstance(config, Mapping) and config.get("steps_per_print") == math.inf:
        return {**config, "steps_per_print": None}
    return config


def plan_from(
    plan: Plan | str | Path,
    model: nn.Module,
    optimizer: Any = None,
    lr_scheduler: Any = None,
    training: TrainingFacts | None = None,
    sequence: int = 1,
) -> Plan:
    """Return the given plan, or the one in a file, completed for this model.

    Nothing is decided anew, except how the remaining ranks share the global batch after nodes were
    lost. Raises ValueError if the plan was made for other ranks, nodes or another model.
    """
    made = plan if isinstance(plan, Plan) else _read(Path(plan))
    facts = facts_of(model, optimizer, lr_scheduler, training)
    if os.environ.get(launch_env.ELASTIC) and made.mesh.world_size != world_size():
        made = _replanned(made, facts)
        batch = made.batch
        print_rank0(
            f"continuing on {made.mesh.world_size} ranks: global batch {batch.global_batch} = "
            f"{batch.micro_batch} x {batch.accumulation} accumulation x {batch.data_parallel} ranks"
        )
    _check_ranks(made)
    if sequence not in (1, made.mesh.sequence):
        raise ValueError(
            f"the plan is for sequence parallel size {made.mesh.sequence}, but the mpu divides "
            f"samples over {sequence} ranks: make a plan with --sequence-parallel {sequence}"
        )
    return dsconfig.complete(made, facts)


def _replanned(made: Plan, facts: Facts) -> Plan:
    """Replan for the current ranks; report a refusal to the launcher, which would retry in vain."""
    try:
        return dsconfig.replan(made, facts)
    except ValueError as error:
        events.emit("refused", why=f"the remaining ranks cannot continue: {error}", again=True)
        raise


def _read(path: Path) -> Plan:
    try:
        return Plan.from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _check_ranks(plan: Plan) -> None:
    planned, running = plan.mesh.world_size, world_size()
    if planned != running:
        raise ValueError(
            f"the plan is for {planned} ranks, but {running} are running: start {planned}, or "
            f"make a new plan with --gpus {running}"
        )
    nodes = node_count(running)
    if nodes > plan.nodes:
        raise ValueError(
            f"the plan is for {plan.nodes} nodes, but the ranks run on {nodes}: make a new plan "
            f"with --nodes {nodes}"
        )


_requested_tensor = 1
"""The degree of ``tp_model_init``."""


def request_tensor_degree(degree: int) -> None:
    """Let plans split layers over ``degree`` ranks, whether or not their config does."""
    global _requested_tensor
    if type(degree) is not int or degree < 1:
        raise ValueError(f"tp_size is {degree!r}, which is not a positive integer")
    _requested_tensor = degree


def _requested_degree(config: Any) -> int:
    """Return the degree of ``tp_model_init``, 1 if the config has it too.

    Raises ValueError if the config has another one.
    """
    block = config.get("tensor_parallel") if isinstance(config, Mapping) else None
    written = block.get("autotp_size", 0) if isinstance(block, Mapping) else 0
    if written in (0, 1, "auto", _requested_tensor) or _requested_tensor == 1:
        return 1 if written == _requested_tensor else _requested_tensor
    raise ValueError(
        f"tensor_parallel.autotp_size {written} contradicts tp_model_init, whose tp_size is "
        f"{_requested_tensor}: remove one of them"
    )


def facts_of(
    model: nn.Module,
    optimizer: Any,
    lr_scheduler: Any,
    training: TrainingFacts | None = None,
    sequence: int = 1,
    tensor: int = 1,
) -> Facts:
    return Facts(
        world_size=world_size(),
        degrees=Degrees(sequence=sequence, tensor=tensor, pipeline=stages_of(model)),
        nodes=node_count(world_size()),
        device=_device_facts(),
        model=_tree_of(model),
        base_weights=base_weights_of(model),
        training=training,
        client_optimizer=None if optimizer is None else type(optimizer).__name__,
        client_scheduler=None if lr_scheduler is None else type(lr_scheduler).__name__,
        origins={"world_size": "process group", "model": "the live module"},
    )


def stages_of(model: nn.Module) -> int:
    """Return the pipeline stages into which the model is built."""
    return model.num_stages if isinstance(model, PipelineModule) else 1


def _tree_of(model: nn.Module) -> ModelTree:
    collected = model.tree if isinstance(model, PipelineModule) else None
    return describe(model) if collected is None else collected


def _device_facts() -> DeviceFacts:
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        return DeviceFacts(
            name=properties.name,
            kind="cuda" if torch.version.hip is None else "rocm",
            memory_bytes=properties.total_memory,
            bf16=torch.cuda.is_bf16_supported(including_emulation=False),
        )
    return DeviceFacts(name="cpu", kind="cpu")


def refuse_uncovered(plan: Plan) -> None:
    """Raise ValueError listing every key of the config that dsengine refuses."""
    rows = [row for row in plan.coverage if row.status is Status.REFUSED]
    if rows:
        lines = [f"  {row.pointer}: {row.by}" for row in rows]
        raise DeepSpeedConfigError(
            "dsengine refuses these keys of the config:\n" + "\n".join(lines)
        )


def refuse_parallel(plan: Plan, model: nn.Module) -> None:
    """Raise ValueError if the plan divides the model along an axis, or into parts, that dsengine
    does not split it along, or the config samples over a number of ranks that does not divide all.
    """
    ranks, wanted = plan.mesh.world_size, plan.effective.config.get("sequence_parallel_size")
    wanted = 1 if wanted is None else wanted
    if type(wanted) is not int or wanted < 1:
        raise ValueError(f"sequence_parallel_size {wanted!r} is not a positive integer")
    if ranks % wanted:
        raise ValueError(
            f"sequence_parallel_size {wanted} does not divide {ranks} ranks: use "
            f"{nearest_degree(wanted, ranks)}"
        )
    block = plan.effective.config.get("tensor_parallel") or {}
    tensor, other = block.get("autotp_size"), (block.get("tp") or {}).get("tp_size", 1)
    if type(tensor) is int and tensor > 1 and (ranks // wanted) % tensor:
        within = f", of which sequence_parallel_size takes {wanted}" if wanted > 1 else ""
        raise ValueError(
            f"tensor_parallel.autotp_size {tensor} does not divide {ranks} ranks{within}: use "
            f"{nearest_degree(tensor, ranks // wanted)}"
        )
    for name, size in (("autotp_size", tensor or 0), ("tp.tp_size", other)):
        if plan.mesh.tensor > 1 and size not in (0, 1, plan.mesh.tensor):
            raise ValueError(
                f"tensor_parallel.{name} {size} contradicts the degree {plan.mesh.tensor}: remove "
                "it"
            )
    _refuse_pipeline(plan, model)
    for axis, capability in DEGREES.items():
        degree = getattr(plan.mesh, axis)
        if degree > 1 and capability.status is Status.REFUSED:
            raise ValueError(f"the plan has {axis} parallel degree {degree}: {capability.text}")
    if plan.mesh.tensor > 1:
        layers_of(model, plan)
    _refuse_experts(plan, model)


def _refuse_pipeline(plan: Plan, model: nn.Module) -> None:
    """Raise ValueError unless the plan has the model's stages, and settings that they support."""
    planned, built = plan.mesh.pipeline, stages_of(model)
    if planned != built:
        raise ValueError(
            f"the plan has {planned} pipeline stages, but the model, a {type(model).__name__}, has "
            f"{built}: build a PipelineModule with num_stages={planned}, or make another plan"
        )
    refused = dsconfig.refused_in_pipeline(plan.effective, plan.mesh)
    if isinstance(model, PipelineModule) and refused:
        raise ValueError(f"the model is a PipelineModule: {refused}")


def _refuse_experts(plan: Plan, model: nn.Module) -> None:
    """Raise ValueError for experts that the ranks, or the model, cannot divide as requested."""
    mesh, block = plan.mesh, plan.effective.config.get("expert_parallel") or {}
    size = block.get("autoep_size") if block.get("enabled") is True else None
    wanted, ranks = size if type(size) is int else mesh.expert, mesh.data_parallel

    def divides(degree: int) -> bool:
        copies = ranks // degree
        return ranks % degree == 0 and copies % min(mesh.shard, copies) == 0

    if wanted > 1 and not divides(wanted):
        raise ValueError(
            f"expert_parallel.autoep_size {wanted} does not divide {ranks} data-parallel ranks"
            f"{f' of which {mesh.shard} share states' if mesh.replicate > 1 < mesh.shard else ''}: "
            f"use {nearest_degree(wanted, ranks, divides)}"
        )
    if mesh.expert > 1:
        experts_of(model, plan)


def refuse_insufficient_memory(plan: Plan, facts: Facts) -> None:
    """Raise ValueError if offloaded states do not fit host memory.

    The comparison covers what training keeps there; on CPU, training needs more than that.
    """
    on_node = plan.memory.get("host_bytes", 0)
    in_process = on_node // max(1, plan.mesh.world_size // plan.nodes)
    for limit, needed, available in (
        (NODE, on_node, memory.available_on_node()),
        (PROCESS, in_process, memory.available_in_process()),
    ):
        if available is not None and needed > available:
            ways = dsconfig.ways_to_fit(
                plan.effective, facts, available, in_process=limit is PROCESS
            )
            fix = ", or ".join(ways) or "train a smaller model, or add host memory"
            raise ValueError(
                f"zero_optimization: offloaded states need {needed / GIBI:.1f} GiB of host memory, "
                f"but {limit} {available / GIBI:.1f} GiB: {fix}"
            )


def refuse_unusable_files(plan: Plan) -> None:
    """Raise ValueError if this node cannot store offloaded states in files.

    Assumes that the ranks of a node share one file system when checking free space.
    """
    zero = plan.effective.zero
    tiers = {"offload_optimizer": zero.offload_optimizer, "offload_param": zero.offload_param}
    directories = {
        f"zero_optimization.{block}.nvme_path": Path(tier.nvme_path)
        for block, tier in tiers.items()
        if zero.stage > 0 and tier is not None and str(tier.tier) == "nvme" and tier.nvme_path
    }
    # The plan does not split its total by path: compare it only if there is one path.
    needed = plan.memory.get("nvme_bytes", 0) if len({*directories.values()}) == 1 else 0
    for key, directory in directories.items():
        problem = files.unusable(directory, needed)
        if problem:
            raise ValueError(f"{key}: {directory}: {problem}")


def refuse(refusals: Sequence[Diagnostic], name: str = "file") -> None:
    if refusals:
        raise DeepSpeedConfigError("this config cannot be run:\n" + _listed(refusals, name))


_PRINTED: set[tuple[str, str | None, str]] = set()
"""Findings already printed by this process: (code, pointer, message)."""


def print_findings(findings: Sequence[Diagnostic]) -> None:
    """Print the findings that do not stop the run, each once per process."""
    new = [f for f in findings if (f.code, f.pointer, f.message) not in _PRINTED]
    _PRINTED.update((f.code, f.pointer, f.message) for f in new)
    if new:
        print_rank0("findings in the config:\n" + _listed(new))


def _listed(findings: Sequence[Diagnostic], name: str = "file") -> str:
    return "\n".join(
        f"  {finding.code} {finding.pointer or f'({name})'}: {finding.message}"
        + (f"\n    {finding.help}" if finding.help else "")
        for finding in findings
    )
