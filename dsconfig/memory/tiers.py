"""Host memory and NVMe, bytes per node."""

from collections.abc import Mapping
from typing import Any, cast

from dsconfig.memory.constants import pinned
from dsconfig.memory.deepspeed.partition import Partition
from dsconfig.memory.estimate import Component, Phase, TierMemory
from dsconfig.memory.workload import Workload
from dsconfig.runtimes.effective import Offload, Tier

_ALL = tuple(Phase)
MEBI = 2**20
_OPTIMIZER = "/zero_optimization/offload_optimizer"
_PARAM = "/zero_optimization/offload_param"
_ACCUMULATION = "/gradient_accumulation_steps"


def host_memory(job: Workload, *, is_deepspeed: bool = True) -> TierMemory:
    """What one node keeps in main memory for offloaded states, and the pinned part of it.

    DeepSpeed keeps a 16-bit copy beside the master, and the model it was given has left for
    the device before any state is made; in dsengine the fp32 masters are made beside it.
    """
    zero = job.effective.zero
    found: list[tuple[Component, bool]] = []
    if zero.offload_optimizer is not None and zero.optimizer_tier is not Tier.DEVICE:
        found += _optimizer(job, zero.offload_optimizer, is_deepspeed)
    if zero.offload_param is not None and zero.parameter_tier is not Tier.DEVICE:
        found += _parameters(job, zero.offload_param)
    if job.activations.on_host:
        pointer = "/activation_checkpointing/cpu_checkpointing"
        found.append((_part("checkpoints", job.activations.on_host, pointer, "2sbh L"), True))
    ranks = job.ranks_per_node
    components = tuple(_times(component, ranks) for component, _ in found)
    rounded = sum(pinned(component.bytes) * ranks for component, is_pinned in found if is_pinned)
    total = sum(component.bytes for component in components)
    built = _times(_built(job), ranks)
    beside = sum(each.bytes for each in components if each.name == "master weights")
    updating = _times(_temporaries(job), ranks)
    peak = max(total + updating.bytes, built.bytes + (0 if is_deepspeed else beside))
    passing = tuple(each for each in (built, updating) if each.bytes)
    components = (*passing, *components)
    return TierMemory(components=components, bytes=total, peak_bytes=peak, pinned_bytes=rounded)


def _built(job: Workload) -> Component:
    """The model on its way to the device: whole, or under zero.Init one module at a time.

    On the CPU it never leaves, and is counted there.
    """
    elements, formula = job.elements, f"{job.built_width} per element, whole on every rank"
    if job.builds_in_pieces:
        elements = job.model.largest_module or max(each.elements for each in job.weights)
        formula = f"{job.built_width} per element of the largest module, under zero.Init"
    amount = 0 if job.on_cpu else elements * job.built_width
    return Component(
        name="model as built", bytes=amount, pointer="", phases=(Phase.INIT,), formula=formula
    )


def _temporaries(job: Workload) -> Component:
    """What an optimizer without a fused kernel holds while it updates states in main memory."""
    offload = job.effective.zero.offload_optimizer
    on_host = offload is not None and offload.tier is Tier.HOST
    share = int(_owned(job) * offload.ratio) if offload is not None and on_host else 0
    return Component(
        name="optimizer temporaries",
        bytes=share * 4 * job.optimizer.temporaries,
        pointer="/optimizer/type",
        phases=(Phase.STEP,),
        formula="unfused kernels only",
    )


def nvme_memory(job: Workload, *, is_deepspeed: bool = True) -> TierMemory:
    """What one node keeps on disk."""
    zero = job.effective.zero
    own, ranks = _owned(job), job.ranks_per_node
    found: list[Component] = []
    if zero.optimizer_tier is Tier.NVME and (is_swapped(job) or not is_deepspeed):
        state = job.optimizer.state_bytes(own, job.state_width)
        found.append(_part("master weights", own * 4, _OPTIMIZER, "4 per owned element"))
        found.append(_part("optimizer state", state, _OPTIMIZER, "state per owned element"))
        found.append(_part("gradients", own * 4, _OPTIMIZER, "4 per owned element"))
    if zero.parameter_tier is Tier.NVME:
        shards = job.shard(job.elements)
        found.append(_part("weights", shards * job.width, _PARAM, "w per owned element"))
    components = tuple(_times(component, ranks) for component in found)
    total = sum(component.bytes for component in components)
    return TierMemory(components=components, bytes=total, peak_bytes=total)


def _owned(job: Workload) -> int:
    return job.shard(sum(weight.elements for weight in job.trainable))


def _optimizer(job: Workload, offload: Offload, is_deepspeed: bool) -> list[tuple[Component, bool]]:
    """Per rank: master, gradient, 16-bit staging and moments; a pool before NVMe."""
    zero, own = job.effective.zero, _owned(job)
    pin = offload.pin_memory
    if offload.tier is Tier.NVME:
        group = min(own, zero.sub_group_size)
        count = offload.buffer_count * (2 if offload.pipeline_read or offload.pipeline_write else 1)
        return [
            *(_unswapped(job, pin) if is_deepspeed else []),
            (_part("gradient shards", own * job.width, _OPTIMIZER, "w per owned element"), pin),
            (
                _part(
                    "swap buffers",
                    count * group * 4,
                    f"{_OPTIMIZER}/buffer_count",
                    "buffer_count x largest sub-group x 4",
                ),
                True,
            ),
        ]
    share = int(own * offload.ratio)
    width = job.master_width
    state = job.optimizer.state_bytes(share, job.state_width)
    staging = own * job.width if is_deepspeed else 0
    # DeepSpeed adds up the passes of a window here: in full what touches the owned part.
    sums = is_deepspeed and zero.stage < 3 and job.accumulation > 1
    summed = Partition.largest(job).touched * job.width if sums else 0
    found = [
        (_part("accumulated gradients", summed, _ACCUMULATION, "w per touched element"), pin),
        (_part("master weights", share * width, _OPTIMIZER, "4 per owned element"), pin),
        (_part("gradients", share * width, _OPTIMIZER, "4 per owned element"), pin),
        (_part("16-bit staging", staging, _OPTIMIZER, "w per owned element"), pin),
        (_part("optimizer state", state, _OPTIMIZER, "state per owned element"), False),
    ]
    return [each for each in found if each[0].bytes]


def is_swapped(job: Workload) -> bool:
    """Whether DeepSpeed writes the optimizer's sub-groups out: those below 1 MiB it keeps.

    ``min_aio_bytes`` in its swap_tensor/optimizer_utils.py: the larger of 1 MiB and block_size.
    """
    aio = cast(Any, job.effective.config.get("aio"))
    block = aio.get("block_size", MEBI) if isinstance(aio, Mapping) else MEBI  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    group = min(_owned(job), job.effective.zero.sub_group_size)
    return group * 4 >= max(MEBI, int(cast(int, block)))


def _unswapped(job: Workload, pin: bool) -> list[tuple[Component, bool]]:
    """What stays in main memory beside the pool: fp32 gradients, and sub-groups too small."""
    own = _owned(job)
    kept = [(_part("gradients", own * 4, _OPTIMIZER, "4 per owned element, to the step"), pin)]
    if not is_swapped(job):
        state = job.optimizer.state_bytes(own, job.state_width)
        small = "sub-groups below 1 MiB are not swapped"
        group = "/zero_optimization/sub_group_size"
        kept.append((_part("master weights", own * 4, group, small), pin))
        kept.append((_part("optimizer state", state, group, small), False))
    return kept


def _parameters(job: Workload, offload: Offload) -> list[tuple[Component, bool]]:
    shards = job.shard(job.elements)
    if offload.tier is Tier.NVME:
        pool = offload.buffer_count * (offload.buffer_size or 100_000_000) * job.width
        kept = min(shards, offload.max_in_cpu or 1_000_000_000) * job.width
        return [
            (_part("swap buffers", pool, f"{_PARAM}/buffer_size", "buffer_count x size x w"), True),
            (_part("weights kept", kept, f"{_PARAM}/max_in_cpu", "max_in_cpu x w"), False),
        ]
    formula = "w per owned element"
    return [(_part("weights", shards * job.width, _PARAM, formula), offload.pin_memory)]


def _part(name: str, amount: int, pointer: str, formula: str) -> Component:
    return Component(name=name, bytes=amount, pointer=pointer, phases=_ALL, formula=formula)


def _times(component: Component, ranks: int) -> Component:
    return Component(
        name=component.name,
        bytes=component.bytes * ranks,
        pointer=component.pointer,
        phases=component.phases,
        formula=f"{component.formula}, {ranks} ranks",
        source=component.source,
    )
