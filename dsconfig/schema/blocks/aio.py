"""Asynchronous file I/O for NVMe offload."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer


class Aio(Block, since="0.3.15"):
    """Asynchronous file I/O settings for NVMe offload; unknown keys are ignored."""

    block_size: Integer = key(1_048_576, "Bytes per I/O request.", unit="bytes")
    queue_depth: Integer = key(8, "Requests kept in flight.")
    intra_op_parallelism: Integer = key(
        1, "Threads per operation (older docs call it thread_count).", since="0.16.4"
    )
    single_submit: bool = key(False, "Submits requests one by one.")
    overlap_events: bool = key(True, "Overlaps submission with completion.")
    use_gds: bool = key(False, "NVIDIA GPUDirect Storage; asserts off CUDA.", since="0.15.0")
    thread_count: Integer = key(
        1,
        "In the documentation only: the code reads intra_op_parallelism, so this name is silently ignored.",
        until="0.16.3",
        replaced_by="aio.intra_op_parallelism",
        status="docs_only",
    )
