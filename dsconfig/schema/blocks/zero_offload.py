"""Where ZeRO keeps parameters and optimizer states: device, host memory, NVMe and its file I/O."""

from typing import Literal

from dsconfig.schema.declare import Block, ReadAs, key
from dsconfig.schema.types import Integer, Natural, OrAuto, Share

Device = Literal["cpu", "none", "nvme"]
DEVICE_WAS = {"0.5.7": "cpu", "0.7.0": None}


class OffloadParam(Block, since="0.3.15", closed="0.7.0"):
    """Parameters in host memory or on NVMe; stage 3 alone looks at it."""

    device: OrAuto[Device] = key(
        "none",
        "Where parameters rest; none is the device.",
        was=DEVICE_WAS,
        memory="2 bytes per 16-bit weight leave the device",
        see=("zero_optimization.stage", "zero_optimization.offload_param.nvme_path"),
    )
    nvme_path: OrAuto[str] | None = key(
        None,
        "Directory on the NVMe drive; needed where device is nvme.",
        read_as=ReadAs.PATH,
        see=("zero_optimization.offload_param.device", "aio"),
    )
    pin_memory: bool = key(
        True,
        "Page-locked host memory: faster copies, but it cannot be swapped out.",
        was={"0.19.5": False},
    )
    buffer_count: Natural = key(5, "Buffers between NVMe and device.")
    buffer_size: Natural = key(
        100_000_000,
        "Size of one buffer; the largest parameter must fit.",
        unit="elements",
        memory="buffer_count x buffer_size x 2 bytes of host memory, NVMe alone",
    )
    max_in_cpu: Natural = key(
        1_000_000_000, "Parameters kept in host memory beside NVMe.", unit="elements"
    )


class OffloadOptimizer(Block, since="0.3.15", closed="0.7.0"):
    """Optimizer states, and the update itself, in host memory or on NVMe."""

    device: OrAuto[Device] = key(
        "none",
        "Where optimizer states rest; whatever but none also updates on the CPU.",
        was=DEVICE_WAS,
        memory="12 bytes per weight (fp32 weight and Adam's two moments) leave the device",
        see=("zero_optimization.stage", "zero_optimization.offload_optimizer.nvme_path"),
    )
    nvme_path: OrAuto[str] | None = key(
        None,
        "Directory on the NVMe drive; needed where device is nvme.",
        read_as=ReadAs.PATH,
        see=("zero_optimization.offload_optimizer.device", "aio"),
    )
    pin_memory: bool = key(
        True,
        "Page-locked host memory: faster copies, but it cannot be swapped out.",
        was={"0.19.5": False},
    )
    buffer_count: Natural = key(4, "Buffers for states read from NVMe; Adam needs 4.")
    pipeline_read: bool = key(False, "Reads the next tile while this one is updated.")
    pipeline_write: bool = key(False, "Writes the last tile while this one is updated.")
    fast_init: bool = key(False, "A faster start with NVMe.", stages=(3,))
    ratio: Share = key(
        1.0,
        "Share of the states updated on the CPU; below 1 needs stage 3.",
        since="0.12.3",
        memory="the rest of the states stays on the device",
    )
    super_offload: bool = key(
        False, "The path for superchips; stage 3 on CUDA alone.", since="0.18.0", stages=(3,)
    )
    cpuadam_cores_perc: Share = key(
        0.8, "Share of the cores that super_offload updates with.", since="0.18.0", stages=(3,)
    )


class Aio(Block, since="0.3.15"):
    """Asynchronous file I/O for NVMe offload."""

    block_size: Integer = key(1_048_576, "Size of one request.", unit="bytes")
    queue_depth: Integer = key(8, "Requests in flight.")
    intra_op_parallelism: Integer = key(1, "Threads that serve one operation.", since="0.16.4")
    single_submit: bool = key(False, "Hands requests over one by one.")
    overlap_events: bool = key(True, "Overlaps submission with completion.")
    use_gds: bool = key(False, "NVIDIA GPUDirect Storage; needs CUDA.", since="0.15.0")
    thread_count: Integer = key(
        1,
        "Documented, and read by no release since 0.16.4.",
        since="0.3.15",
        replaced_by="aio.intra_op_parallelism",
        status="docs_only",
        renamed="0.16.4",
    )
