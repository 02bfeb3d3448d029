"""Host memory and NVMe, bytes per node."""

from dataclasses import replace

from dsconfig.cost.categories import OPTIMIZER, TEMPORARIES
from dsconfig.cost.deepspeed import host_tier as deepspeed
from dsconfig.cost.dsengine import host_tier as dsengine
from dsconfig.cost.estimate import Component, Phase, TierMemory
from dsconfig.cost.formulas import CHECKPOINTS
from dsconfig.cost.hardware import pinned
from dsconfig.cost.workload import Workload
from dsconfig.runtimes.base import Runtime
from dsconfig.runtimes.effective import Tier


def host_memory(job: Workload, program: Runtime) -> TierMemory:
    """Return what one node keeps in host memory for offloaded states, and its pinned part.

    DeepSpeed moves the model to the device before creating states; dsengine creates the fp32
    masters while the model is still in host memory.
    """
    of_program = deepspeed if program.runs_deepspeed else dsengine
    zero, found = job.effective.zero, list[Component]()
    if zero.offload_optimizer is not None:
        found += of_program.optimizer_on_host(job, zero.offload_optimizer)
    if zero.offload_param is not None:
        found += of_program.parameters_on_host(job, zero.offload_param)
    if job.activations.on_host:
        pointer = "/activation_checkpointing/cpu_checkpointing"
        amount = job.activations.on_host
        found.append(
            Component(
                "checkpoints",
                amount,
                pointer,
                CHECKPOINTS,
                pinned=True,
            )
        )
    ranks = job.ranks_per_node
    locked = sum(_locked(each) for each in found)
    rounds = program.runs_deepspeed and not job.on_cpu
    raw = sum(each.bytes for each in found if each.pinned)
    added = Component(
        "rounding of page-locked memory",
        locked - raw if rounds else 0,
        f"{OPTIMIZER}/pin_memory",
        "each page-locked tensor to the next power of two",
    )
    rounding = _times(added, ranks)
    components = tuple(_times(each, ranks) for each in found if each.bytes)
    total = sum(component.bytes for component in components)
    built, updating = _times(_built(job), ranks), _times(_temporaries(job), ranks)
    flattened = _times(deepspeed.flattened(job), ranks) if program.runs_deepspeed else None
    masters = 0 if program.runs_deepspeed else dsengine.created_masters(job) * ranks
    creating = max(built.bytes + masters, flattened.bytes if flattened else 0)
    peak = max(total + rounding.bytes + updating.bytes, creating)
    passing = tuple(each for each in (built, flattened, updating) if each and each.bytes)
    components = (*passing, *components, *((rounding,) if rounding.bytes else ()))
    return TierMemory(
        components=components,
        bytes=total,
        peak_bytes=peak,
        pinned_bytes=locked * ranks,
        rounding_bytes=rounding.bytes,
    )


def _locked(component: Component) -> int:
    """Return the bytes of torch's pinned allocations of one rank, tensor by tensor."""
    if not component.pinned or not component.bytes:
        return 0
    piece = min(component.piece or component.bytes, component.bytes)
    full, rest = divmod(component.bytes, piece)
    return full * pinned(piece) + pinned(rest)


def nvme_memory(job: Workload, program: Runtime) -> TierMemory:
    """Return what one node keeps on disk."""
    found = (deepspeed if program.runs_deepspeed else dsengine).on_nvme(job)
    components = tuple(_times(each, job.ranks_per_node) for each in found)
    total = sum(component.bytes for component in components)
    return TierMemory(components=components, bytes=total, peak_bytes=total)


def _built(job: Workload) -> Component:
    """Return the model before it moves to the device: full, or under zero.Init one module at a
    time.

    On the CPU it is counted as device memory.
    """
    elements = job.built.elements
    formula = f"{job.built_width} bytes per element, full model on every rank"
    if job.builds_in_pieces:
        elements = job.model.largest_module or max(each.elements for each in job.built)
        formula = f"{job.built_width} bytes per element of the largest module, under zero.Init"
    elif job.built.largest_quantized:
        elements = max(job.built.largest, job.built.largest_quantized)
        formula = (
            f"{job.built_width} bytes per element of the largest tensor, quantized on the device"
        )
    amount = 0 if job.on_cpu else elements * job.built_width
    return Component("model as built", amount, "", formula, (Phase.INIT,))


def _temporaries(job: Workload) -> Component:
    """Return what an optimizer without a fused kernel needs while it updates states
    in host memory."""
    offload = job.effective.zero.offload_optimizer
    on_host = offload is not None and offload.tier is Tier.HOST
    share = int(job.owned * offload.ratio) if offload is not None and on_host else 0
    name, pointer, formula, *_ = TEMPORARIES
    amount = job.master_width * job.optimizer.temporaries_below(share)
    return Component(name, amount, pointer, formula, (Phase.STEP,))


def _times(component: Component, ranks: int) -> Component:
    formula = f"{component.formula}, {ranks} ranks"
    return replace(component, bytes=component.bytes * ranks, formula=formula)
