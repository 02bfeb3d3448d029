"""From a config in any form, or a plan made elsewhere, to a plan for this model and ranks."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import dsconfig
from dsconfig import DeviceFacts, Diagnostic, Facts, Plan, Status, TrainingFacts, launch_env
from dsengine.communication.environment import node_count
from dsengine.loop.misuse import ArgumentError
from dsengine.observation import events
from dsengine.observation.printing import print_rank0
from dsengine.parameters.model_tree import describe
from dsengine.tiers import files, memory
from dsengine.tiers.memory import GIBI

NODE, PROCESS = "this node has", "the limit of this process leaves"

Config = str | Path | Mapping[str, Any]


class DeepSpeedConfigError(ArgumentError):
    """A config that cannot be run, with every finding; scripts know it by this name.

    Of some keys DeepSpeed raises AssertionError instead, which this is too.
    """


def plan_for(
    config: Config,
    model: nn.Module,
    optimizer: Any = None,
    lr_scheduler: Any = None,
    training: TrainingFacts | None = None,
) -> Plan:
    """Read, validate, resolve and plan.

    Raises ValueError with everything that is refused, at once; what else is found is said.
    """
    facts = facts_of(model, optimizer, lr_scheduler, training)
    document = dsconfig.read(_without_infinity(config))
    report = dsconfig.validate(document, facts, runtime="dsengine")
    refuse(report.refusals)
    resolution = dsconfig.resolve(document, facts)
    refuse(resolution.refusals)
    say_findings([*report.errors, *report.warnings, *resolution.diagnostics])
    return dsconfig.plan(resolution, facts)


_DIVIDED = ("tensor_model_parallel", "model_parallel")
"""What Megatron and DeepSpeed mark the parameters with of which each rank has another part."""
_PARTS_OF_LAYERS = (
    "get_model_parallel_world_size",
    "get_tensor_model_parallel_world_size",
)
_DEGREES = (
    *_PARTS_OF_LAYERS,
    "get_pipeline_model_parallel_world_size",
    "get_pipe_parallel_world_size",
    "get_sequence_parallel_world_size",
)
"""What an ``mpu`` may be asked, by Megatron's names and DeepSpeed's."""


def refuse_divided_layers(model: nn.Module, mpu: Any, mesh_param: Any) -> None:
    """Raise ValueError where ranks hold parts of layers or of samples: all are averaged here."""
    found = [f"mpu.{name}() is {n}" for name in _DEGREES if (n := _degree(mpu, name)) > 1]
    if mesh_param is not None and tuple(mesh_param)[1:] not in ((), (1,)):
        found.append(f"mesh_param is {tuple(mesh_param)}")
    # Megatron marks them even where one rank has all of each: there the mpu says so.
    marks = () if any(hasattr(mpu, name) for name in _PARTS_OF_LAYERS) else _DIVIDED
    found += [
        f"{name!r} is marked {mark}"
        for name, parameter in model.named_parameters()
        for mark in marks
        if getattr(parameter, mark, False)
    ][:1]
    if found:
        raise ValueError(
            f"{found[0]}, but dsengine divides no layers and no samples among ranks and would "
            "average gradients that belong to different parts: give a whole model and "
            "zero_optimization.stage 3, or train with DeepSpeed"
        )


def _degree(mpu: Any, name: str) -> int:
    return int(getattr(mpu, name, lambda: 1)())


def _without_infinity(config: Config) -> Config:
    """Say "never" as a file does: accelerate says that lines are infinitely many steps apart."""
    if isinstance(config, Mapping) and config.get("steps_per_print") == math.inf:
        return {**config, "steps_per_print": None}
    return config


def plan_from(
    plan: Plan | str | Path,
    model: nn.Module,
    optimizer: Any = None,
    lr_scheduler: Any = None,
    training: TrainingFacts | None = None,
) -> Plan:
    """The plan, or that in a file, with what this model adds; nothing is decided anew, but how
    other ranks share the global batch where nodes were lost.

    Raises ValueError when it was made for other ranks, other nodes or another model.
    """
    made = plan if isinstance(plan, Plan) else _read(Path(plan))
    facts = facts_of(model, optimizer, lr_scheduler, training)
    if os.environ.get(launch_env.ELASTIC) and made.mesh.world_size != dist.get_world_size():
        made = _for_ranks_left(made, facts)
        batch = made.batch
        print_rank0(
            f"{made.mesh.world_size} ranks go on with the global batch of {batch.global_batch} = "
            f"{batch.micro_batch} x {batch.accumulation} accumulation x {batch.data_parallel} ranks"
        )
    _insist_on_these_ranks(made)
    return dsconfig.complete(made, facts)


def _for_ranks_left(made: Plan, facts: Facts) -> Plan:
    """The plan for other ranks; a refusal is told to who would start them again, in vain."""
    try:
        return dsconfig.replan(made, facts)
    except ValueError as error:
        events.emit("refused", why=f"the ranks that are left cannot go on: {error}", again=True)
        raise


def _read(path: Path) -> Plan:
    try:
        return Plan.from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _insist_on_these_ranks(plan: Plan) -> None:
    planned, running = plan.mesh.world_size, dist.get_world_size()
    if planned != running:
        raise ValueError(
            f"the plan is for {planned} ranks, but {running} are running: start {planned}, or "
            f"plan again with --gpus {running}"
        )
    nodes = node_count(running)
    if nodes > plan.nodes:
        raise ValueError(
            f"the plan is for ranks on {plan.nodes} nodes, but they run on {nodes}: plan again "
            f"with --nodes {nodes}"
        )


def facts_of(
    model: nn.Module, optimizer: Any, lr_scheduler: Any, training: TrainingFacts | None = None
) -> Facts:
    return Facts(
        world_size=dist.get_world_size(),
        nodes=node_count(dist.get_world_size()),
        device=_device_facts(),
        model=describe(model),
        training=training,
        client_optimizer=None if optimizer is None else type(optimizer).__name__,
        client_scheduler=None if lr_scheduler is None else type(lr_scheduler).__name__,
        origins={"world_size": "process group", "model": "the live module"},
    )


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
    """Raise ValueError naming every key of the config that this engine cannot honour."""
    rows = [row for row in plan.coverage if row.status is Status.REFUSED]
    if rows:
        lines = [f"  {row.pointer}: {row.by}" for row in rows]
        raise DeepSpeedConfigError(
            "this config asks for what dsengine refuses:\n" + "\n".join(lines)
        )


def refuse_insufficient_memory(plan: Plan, facts: Facts) -> None:
    """Raise ValueError, before a byte is taken, when main memory cannot hold what is offloaded.

    What is compared is what training keeps there; on the CPU that is not all it takes.
    """
    on_node = plan.memory.get("host_bytes", 0)
    in_process = on_node // max(1, plan.mesh.world_size // plan.nodes)
    for whose, needed, available in (
        (NODE, on_node, memory.available_on_node()),
        (PROCESS, in_process, memory.available_in_process()),
    ):
        if available is not None and needed > available:
            ways = dsconfig.ways_to_fit(
                plan.effective, facts, available, in_process=whose is PROCESS
            )
            remedy = ", or ".join(ways) or "train a smaller model, or give it more memory"
            raise ValueError(
                f"zero_optimization: offloaded states need {needed / GIBI:.1f} GiB of main memory, "
                f"and {whose} {available / GIBI:.1f} GiB: {remedy}"
            )


def refuse_unusable_files(plan: Plan) -> None:
    """Raise ValueError, before a byte is written, where states cannot go into files on this node.

    Space is compared with what the ranks of a node keep there, if they share one file system.
    """
    zero = plan.effective.zero
    tiers = {"offload_optimizer": zero.offload_optimizer, "offload_param": zero.offload_param}
    places = {
        f"zero_optimization.{block}.nvme_path": Path(tier.nvme_path)
        for block, tier in tiers.items()
        if zero.stage > 0 and tier is not None and str(tier.tier) == "nvme" and tier.nvme_path
    }
    # What each of two disks gets is not in the plan: the sum is held against one that has both.
    needed = plan.memory.get("nvme_bytes", 0) if len({*places.values()}) == 1 else 0
    for key, place in places.items():
        wrong = files.unusable(place, needed)
        if wrong:
            raise ValueError(f"{key}: {place}: {wrong}")


def refuse(refusals: Sequence[Diagnostic]) -> None:
    if refusals:
        raise DeepSpeedConfigError("this config cannot be run:\n" + _listed(refusals))


_SAID: set[tuple[str, str | None, str]] = set()
"""What this process was told of configs, by code, place and words."""


def say_findings(found: Sequence[Diagnostic]) -> None:
    """What does not stop the run, in one message, and of several engines' configs each once."""
    fresh = [each for each in found if (each.code, each.pointer, each.message) not in _SAID]
    _SAID.update((each.code, each.pointer, each.message) for each in fresh)
    if fresh:
        print_rank0("about this config:\n" + _listed(fresh))


def _listed(found: Sequence[Diagnostic]) -> str:
    return "\n".join(
        f"  {each.code} {each.pointer or '(file)'}: {each.message}"
        + (f"\n    {each.help}" if each.help else "")
        for each in found
    )
