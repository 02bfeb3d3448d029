"""From a config and facts to an Estimate."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType

from dsconfig.cost import companions, hardware
from dsconfig.cost.activations import (
    CHECKPOINT_INTERVAL,
    Recompute,
    recompute_of,
    sets_recomputation,
)
from dsconfig.cost.buckets import bucket_rule_bytes
from dsconfig.cost.categories import MASTERS
from dsconfig.cost.estimate import (
    DeviceMemory,
    Estimate,
    Fit,
    Option,
    Phase,
    StepEstimate,
    TierMemory,
)
from dsconfig.cost.master_weights import specified, with_master_weights
from dsconfig.cost.optimizers import optimizer_label
from dsconfig.cost.pipeline import workloads
from dsconfig.cost.step_time import step_time
from dsconfig.cost.tiers import host_memory, nvme_memory
from dsconfig.cost.timeline import SHAPED, BudgetExceeded, Trace
from dsconfig.cost.workload import Workload
from dsconfig.facts.adapters import rank_of
from dsconfig.facts.facts import Facts
from dsconfig.facts.inputs import LARGEST_SIZE
from dsconfig.facts.model import ModelTree
from dsconfig.runtimes.base import Runtime, runtime_of
from dsconfig.runtimes.degrees import (
    expert_degree,
    recomputed_blocks,
    with_degrees,
    with_executed_degrees,
)
from dsconfig.runtimes.effective import TIER_NAMES, Effective, Tier
from dsconfig.schema.paths import AUTOEP_SIZE


def estimate(
    effective: Effective, facts: Facts, *, runtime: str | Runtime = "dsengine"
) -> Estimate:
    """Return bytes on device, host and NVMe for one config, by component and phase.

    Raises ValueError if the model or the number of devices is unknown.
    """
    program = runtime_of(runtime)
    option = estimate_option(effective, facts, runtime=program)
    in_force = facts_in_force(effective, facts, program)
    return Estimate(options=(option,), inputs=inputs_of(effective, in_force, program))


def facts_in_force(effective: Effective, facts: Facts, program: Runtime) -> Facts:
    """Return the facts with the parallel degrees and the pipeline recomputation set in the file.

    dsengine reads only those that it executes, and rejects or ignores the others.
    """
    if not program.runs_deepspeed:
        return with_executed_degrees(facts, effective.config)
    split = with_degrees(facts, effective.config)
    blocks = recomputed_blocks(effective.config)
    if split.degrees.pipeline == 1 or not blocks or sets_recomputation(split):
        return split
    arguments = {"gradient_checkpointing": str(Recompute.FULL), CHECKPOINT_INTERVAL: blocks}
    return split.with_execution(arguments)


def estimate_option(
    effective: Effective, facts: Facts, *, runtime: str | Runtime = "dsengine"
) -> Option:
    """Estimate one choice of stage and offload."""
    _require_possible_batch(effective)
    program = runtime_of(runtime)
    effective = with_master_weights(effective, facts, program)
    facts = facts_in_force(effective, facts, program)
    return _option(workloads(effective, facts, program), effective, facts, program)


def _require_possible_batch(effective: Effective) -> None:
    """Raise ValueError if a batch size is larger than any tensor."""
    batch = effective.batch
    if batch is not None and batch.global_batch > LARGEST_SIZE:
        raise ValueError(
            "the global batch has more than 2^63 samples, which is too large to estimate; set "
            "train_batch_size or train_micro_batch_size_per_gpu to a smaller number"
        )


def estimate_if_fits(
    effective: Effective,
    facts: Facts,
    *,
    runtime: str | Runtime,
    below: Callable[[TierMemory, TierMemory], bool],
) -> Option | None:
    """Return the same estimate, or None as soon as it is known not to fit.

    Stops if ``below`` rejects host memory and NVMe, or if the replay exceeds the device. A result
    may still not fit.
    """
    _require_possible_batch(effective)
    program = runtime_of(runtime)
    effective = with_master_weights(effective, facts, program)
    facts = facts_in_force(effective, facts, program)
    jobs = workloads(effective, facts, program)
    if len(jobs) == 1 and not below(*_below_device(jobs[0], program)):
        return None
    budget = _allocation_budget(facts)
    try:
        return _option(
            [replace(job, memory_budget=budget) for job in jobs], effective, facts, program
        )
    except BudgetExceeded:
        return None


def _below_device(job: Workload, program: Runtime) -> tuple[TierMemory, TierMemory]:
    """Return host memory and NVMe."""
    return host_memory(job, program), nvme_memory(job, program)


def _option(
    jobs: Sequence[Workload], effective: Effective, facts: Facts, program: Runtime
) -> Option:
    simulate = simulator_of(program)
    runs = [(job, simulate(job)) for job in jobs]
    job, trace = max(runs, key=lambda run: run[1].peak)
    zero = effective.zero
    host, nvme = _below_device(job, program)
    host = companions.in_tier(host, Tier.HOST, job, facts)
    nvme = companions.in_tier(nvme, Tier.NVME, job, facts)
    low, high = spread(job, trace)
    device = DeviceMemory(
        components=trace.components(),
        phase_bytes=MappingProxyType(trace.peaks),
        end_bytes=MappingProxyType(trace.end_bytes),
        peak_bytes=trace.peak,
        peak_phase=trace.peak_phase,
        low_bytes=low,
        high_bytes=high,
        **(_on_cpu(job, trace, host) if job.on_cpu else _on_gpu(trace, facts)),
    )
    device = companions.on_device(device, job, facts)
    gpu = facts.device
    known = [(gpu.name, gpu.memory_bytes)] if gpu and gpu.memory_bytes is not None else []
    return Option(
        stage=zero.stage,
        offload_optimizer=TIER_NAMES[zero.optimizer_tier],
        offload_param=TIER_NAMES[zero.parameter_tier],
        device=device,
        host=host,
        nvme=nvme,
        bucket_rule_bytes=bucket_rule_bytes(zero),
        bucket_allocated_bytes=trace.buckets,
        fits=fits_on(known, device),
        step=_step(effective, facts, program),
    )


def _step(effective: Effective, facts: Facts, program: Runtime) -> StepEstimate | None:
    """Return the estimated step time as part of an option."""
    if effective.batch is None:
        return None
    time = step_time(effective, facts, runtime=program)
    peak = facts.device.tflops_16bit if facts.device else None
    return StepEstimate(
        seconds=time.seconds,
        low_seconds=time.low,
        high_seconds=time.high,
        compute_seconds=time.compute,
        communication_seconds=time.communication,
        offload_seconds=time.offload,
        bubble_seconds=time.bubble,
        tokens_per_second_per_gpu=time.tokens_per_second,
        mfu=time.mfu(peak * 1e12 if peak else None),
    )


def _on_cpu(job: Workload, trace: Trace, host: TierMemory) -> dict[str, int]:
    """Return the fields for a CPU: no pool and no context, and offloaded data shares its memory.

    While the model is built only the offloaded masters count.
    """
    masters = sum(each.bytes for each in host.components if each.name == MASTERS)
    offloaded = dict.fromkeys(trace.peaks, host.bytes) | {Phase.INIT: masters}
    total = max(
        peak + offloaded[phase] // job.ranks_per_node for phase, peak in trace.peaks.items()
    )
    needed = ("visible_bytes", "needed_bytes", "least_needed_bytes", "most_needed_bytes")
    return {"reserved_bytes": trace.peak, **dict.fromkeys(needed, total)}


def _on_gpu(trace: Trace, facts: Facts) -> dict[str, int]:
    """Return the bytes around the peak: pools and fragmentation, context and communicators."""
    outside = hardware.outside_bytes(facts)
    reserved = _reserved(trace.pooled, facts)
    least, most = hardware.LEAST_RESERVED, hardware.MOST_RESERVED
    return {
        "reserved_bytes": reserved,
        "visible_bytes": reserved + outside,
        "needed_bytes": _reserved(trace.peak, facts) + outside,
        "least_needed_bytes": _reserved(trace.peak, facts, least) + outside,
        "most_needed_bytes": _reserved(trace.peak, facts, most) + outside,
    }


def _reserved(pooled: int, facts: Facts, margin: float = hardware.RESERVED_OVER_ALLOCATED) -> int:
    return int((pooled + _workspace(facts)) * margin)


def _workspace(facts: Facts) -> int:
    return hardware.workspace_bytes(facts.device.compute_capability if facts.device else None)


def _allocation_budget(facts: Facts) -> int | None:
    """Return the most bytes that may be allocated on the device; None if its memory is unknown."""
    if facts.device_bytes is None or facts.on_cpu:
        return facts.device_bytes
    left = facts.device_bytes - hardware.outside_bytes(facts)
    # The inverse of _reserved, to a byte; in a browser, bisect cannot search a range of 2^31.
    budget = int(left / hardware.RESERVED_OVER_ALLOCATED) - _workspace(facts)
    while _reserved(budget, facts) > left:
        budget -= 1
    while _reserved(budget + 1, facts) <= left:
        budget += 1
    return max(budget, -1)


def fits_on(devices: list[tuple[str, int]], device: DeviceMemory) -> tuple[Fit, ...]:
    """Compare with devices given as (name, usable bytes)."""
    return tuple(
        Fit(
            device=name,
            memory_bytes=memory,
            fits=memory >= device.needed_bytes,
            may_fit=memory >= device.least_needed_bytes,
            headroom_bytes=memory - device.needed_bytes,
        )
        for name, memory in devices
    )


def inputs_of(
    effective: Effective, facts: Facts, runtime: str | Runtime
) -> MappingProxyType[str, object]:
    """Return the facts and choices that went in, ready for JSON."""
    model, training, batch = facts.model, facts.training, effective.batch
    program = runtime_of(runtime)
    micro = batch.micro_batch if batch else training.micro_batch_size if training else None
    return MappingProxyType(
        {
            "runtime": program.name,
            "deepspeed_version": str(program.version) if program.runs_deepspeed else None,
            "model": model.name if model else None,
            "parameters": model.parameters if model else None,
            "trainable": model.trainable if model else None,
            "lora_rank": rank_of(model) if model else None,
            "assumed": _assumed(model) if model else [],
            "gpus": facts.world_size,
            "nodes": facts.nodes,
            "device": facts.device.name if facts.device else None,
            "precision": str(effective.numerics.precision),
            "master_weights": specified(facts),
            "base_weights": facts.base_weights,
            "optimizer": optimizer_label(effective, facts),
            "micro_batch": micro,
            "sequence_length": facts.sequence_length,
            "accumulation": batch.accumulation if batch else 1,
            "recompute": recompute_of(effective, facts),
            "overlap_comm": effective.zero.overlap_comm,
            "not_estimated": not_estimated(effective, facts),
        }
    )


def not_estimated(effective: Effective, facts: Facts) -> list[str]:
    """Return the keys of the config whose effect on memory and time is not estimated: the degree
    of experts that the model is not known to have."""
    shape = facts.architecture
    known = shape is not None and bool(shape.experts)
    divided = expert_degree(effective.config) > 1
    return [AUTOEP_SIZE.dotted] if divided and not known else []


def simulator_of(runtime: str | Runtime) -> Callable[[Workload], Trace]:
    """Return the function that replays a runtime's allocations. Raises ValueError for an unknown
    runtime."""
    if runtime_of(runtime).runs_deepspeed:
        from dsconfig.cost import deepspeed

        return deepspeed.simulate
    from dsconfig.cost import dsengine

    return dsengine.simulate


def _assumed(model: ModelTree) -> list[str]:
    """Return what a model's sizes assume, and what they leave out."""
    left_out = [f"{model.uncounted} is not counted"] if model.uncounted else []
    return [*model.assumed, *left_out]


def spread(job: Workload, trace: Trace) -> tuple[int | None, int | None]:
    """Return (low, high) bytes of the peak; (None, None) if nothing was assumed.

    States follow from the parameter count to within a few percent of padding and layout.
    Activations, logits and gathered layers depend on shapes and may be 25 % off for another shape
    of the same size.
    """
    if not job.model.assumed:
        return None, None
    at_peak = trace.parts[trace.peak_phase]
    loose = sum(amount for category, amount in at_peak.items() if category.name in SHAPED)
    tight = trace.peak - loose
    return int(tight * 0.97 + loose * 0.75), int(tight * 1.03 + loose * 1.25)
