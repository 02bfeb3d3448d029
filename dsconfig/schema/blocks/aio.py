"""Asynchronous file I/O for NVMe offload."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer


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
        until="0.16.3",
        replaced_by="aio.intra_op_parallelism",
        status="docs_only",
        renamed="0.16.4",
    )
