"""Memory rules: bucket size, host memory for offloaded states, NVMe buffers."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import MODEL, rule
from dsconfig.checks.rule import Finding
from dsconfig.report import Effect
from dsconfig.report.sizes import gib
from dsconfig.schema.paths import OFFLOAD_OPTIMIZER, OFFLOAD_PARAM, ZERO, KeyPath

STATE_BYTES = 12
"""fp32 master weight and two Adam moments, per element."""
GRADIENT_BYTES = 4
"""fp32 gradient per element, kept with offloaded states."""
BUCKET = "reduce_bucket_size"


@rule("DSC501", Effect.COSTLY, triggers=MODEL)
def bucket_larger_than_model(config: Context) -> Iterator[Finding]:
    """`reduce_bucket_size` larger than the model

    The buffer is allocated at its full size, and communication does not overlap with backward,
    because all gradients are in one bucket. The model is set by `--model`.

    with: model="gpt2"
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2,
        "reduce_bucket_size": 5e8}}
    good: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2,
        "reduce_bucket_size": 2e7}}
    """
    model = config.facts.model
    if model is None or config.stage == 0:
        return
    size = config.in_force(ZERO, BUCKET)
    if config.written(ZERO, BUCKET) and size > model.parameters:
        tenth = model.parameters // 10
        # To two leading digits.
        digits = max(len(str(tenth)) - 2, 0)
        advised = tenth // 10**digits * 10**digits or 1
        yield Finding(
            path=ZERO / BUCKET,
            message=f"{BUCKET} {size} exceeds the {model.parameters:,} parameters of {model.name}: "
            "all gradients are in one bucket, and communication does not overlap",
            help=f"write about a tenth of the model size: {advised}",
        )


@rule(
    "DSC502",
    Effect.REFUSED,
    also=(Effect.COSTLY,),
    triggers=MODEL,
    stops="zero",
    from_source="needs a model that fills the memory of a node",
)
def host_memory_too_small(config: Context) -> Iterator[Finding]:
    """Offloaded optimizer states exceed host memory

    The host memory of a node is set by `--host-memory`. The requirement is a lower bound: 12 bytes
    of Adam states and master weight and 4 bytes of gradient per trainable parameter, divided by the
    number of nodes. If it fits only without the operating system's share, this is a warning.
    `dsconfig estimate` includes all memory.

    with: model="llama-2-13b", gpus=8, host_memory="64GiB"
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2,
        "offload_optimizer": {"device": "cpu"}}}
    with: model="llama-2-13b", gpus=8, host_memory="1024GiB"
    good: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2,
        "offload_optimizer": {"device": "cpu"}}}
    """
    model, host = config.facts.model, config.facts.host
    if model is None or config.stage == 0 or config.offload("offload_optimizer") != "cpu":
        return
    if host is None or host.memory_bytes is None or host.usable_bytes is None:
        return
    nodes = config.facts.nodes or 1
    needed = model.trainable * (STATE_BYTES + GRADIENT_BYTES) // nodes
    if needed <= host.usable_bytes:
        return
    stops = needed > host.memory_bytes
    total, usable = gib(host.memory_bytes, 0), gib(host.usable_bytes, 0)
    consequence = "kills the processes" if stops else "swaps or kills the processes"
    available = total if stops else f"{usable} usable of {total}"
    yield Finding(
        path=OFFLOAD_OPTIMIZER,
        message=f"offloaded states of {model.name} require {gib(needed, 0)} of host memory per "
        "node, "
        f"which has {available}: the system {consequence}",
        help="use more nodes, offload to nvme at stage 3, or train fewer parameters",
        effect=None if stops else Effect.COSTLY,
        on_key=True,
    )


@rule(
    "DSC503",
    Effect.REFUSED,
    triggers=MODEL,
    stops="zero AssertionError",
    from_source="needs a model of 7 billion parameters, and NVMe",
)
def buffer_smaller_than_tensor(config: Context) -> Iterator[Finding]:
    """NVMe `buffer_size` smaller than a parameter shard

    The buffer must fit one rank's shard of the largest tensor of the model.

    with: model="llama-2-7b", gpus=8
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "offload_param":
        {"device": "nvme", "nvme_path": "/nvme", "buffer_size": 1e6}}}
    good: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "offload_param":
        {"device": "nvme", "nvme_path": "/nvme", "buffer_size": 2e8}}}
    """
    model, world = config.facts.model, config.facts.world_size
    path: KeyPath = OFFLOAD_PARAM
    if model is None or model.largest_tensor is None:
        return
    if config.stage != 3 or config.offload("offload_param") != "nvme":
        return
    size = config.in_force(path, "buffer_size")
    share = -(-model.largest_tensor // (world or 1))
    if size < share and (world is not None or config.written(path, "buffer_size")):
        yield Finding(
            path=path / "buffer_size",
            message=f"buffer_size {size} is less than a rank's shard of the largest tensor of "
            f"{model.name}, {share:,} elements: DeepSpeed fails when it swaps",
            help=f"set it to at least {share}",
        )
