"""ZeRO offload to CPU and NVMe, and asynchronous I/O."""

from typing import Literal

from dsconfig.schema.declare import Block, ReadAs, key
from dsconfig.schema.types import Integer, Natural, OrAuto, Share

Device = Literal["cpu", "none", "nvme"]
DEVICE_WAS = {"0.5.7": "cpu", "0.7.0": None}


class OffloadParam(Block, since="0.3.15", closed="0.7.0"):
    """Parameter offload to CPU or NVMe; stage 3 only."""

    device: OrAuto[Device] = key(
        "none",
        "Storage device of parameters; none: the GPU.",
        was=DEVICE_WAS,
        memory="2 bytes per 16-bit weight move from the device",
        see=("zero_optimization.stage", "zero_optimization.offload_param.nvme_path"),
    )
    nvme_path: OrAuto[str] | None = key(
        None,
        "Directory on the NVMe drive; required for device nvme.",
        read_as=ReadAs.PATH,
        see=("zero_optimization.offload_param.device", "aio"),
    )
    pin_memory: bool = key(
        True,
        "Use pinned host memory: faster copies, but it cannot be swapped out.",
        was={"0.19.5": False},
    )
    buffer_count: Natural = key(5, "Number of buffers between NVMe and device.")
    buffer_size: Natural = key(
        100_000_000,
        "Size of one buffer; must hold the largest parameter.",
        unit="elements",
        memory="buffer_count x buffer_size x 2 bytes of host memory, with NVMe only",
    )
    max_in_cpu: Natural = key(
        1_000_000_000, "Parameter elements kept in host memory with NVMe offload.", unit="elements"
    )


class OffloadOptimizer(Block, since="0.3.15", closed="0.7.0"):
    """Optimizer offload to CPU or NVMe, including the optimizer step."""

    device: OrAuto[Device] = key(
        "none",
        "Storage device of optimizer states; with cpu and nvme the step runs on the CPU.",
        was=DEVICE_WAS,
        memory="12 bytes per weight (fp32 weight and Adam's two moments) move from the device",
        see=("zero_optimization.stage", "zero_optimization.offload_optimizer.nvme_path"),
    )
    nvme_path: OrAuto[str] | None = key(
        None,
        "Directory on the NVMe drive; required for device nvme.",
        read_as=ReadAs.PATH,
        see=("zero_optimization.offload_optimizer.device", "aio"),
    )
    pin_memory: bool = key(
        True,
        "Use pinned host memory: faster copies, but it cannot be swapped out.",
        was={"0.19.5": False},
    )
    buffer_count: Natural = key(4, "Number of buffers for states read from NVMe; Adam needs 4.")
    pipeline_read: bool = key(False, "Overlap reading the next tile with the update.")
    pipeline_write: bool = key(False, "Overlap writing the previous tile with the update.")
    fast_init: bool = key(False, "Faster initialization with NVMe.", stages=(3,))
    ratio: Share = key(
        1.0,
        "Fraction of states updated on the CPU; below 1 requires stage 3.",
        since="0.12.3",
        memory="the remaining states stay on the device",
    )
    super_offload: bool = key(
        False, "SuperOffload for superchips; stage 3 on CUDA only.", since="0.18.0", stages=(3,)
    )
    cpuadam_cores_perc: Share = key(
        0.8,
        "Fraction of CPU cores that super_offload uses for the step.",
        since="0.18.0",
        stages=(3,),
    )


class Aio(Block, since="0.3.15"):
    """Asynchronous I/O for NVMe offload."""

    block_size: Integer = key(1_048_576, "Size of one I/O request.", unit="bytes")
    queue_depth: Integer = key(8, "I/O requests in flight.")
    intra_op_parallelism: Integer = key(1, "Threads per I/O operation.", since="0.16.4")
    single_submit: bool = key(False, "Submit requests one at a time.")
    overlap_events: bool = key(True, "Overlap submission and completion of requests.")
    use_gds: bool = key(False, "Use NVIDIA GPUDirect Storage; requires CUDA.", since="0.15.0")
    thread_count: Integer = key(
        1,
        "Documented but not read since 0.16.4.",
        since="0.3.15",
        replaced_by="aio.intra_op_parallelism",
        status="docs_only",
        renamed="0.16.4",
    )
