"""DeepCompile: compiler passes that schedule ZeRO communication."""

from typing import Any, Literal

from dsconfig.schema.declare import Block, ReadAs, key
from dsconfig.schema.types import Integer, OrAbsent


class Compile(Block, since="0.13.2", closed=(("0.13.2", "0.14.3"), ("0.16.6", None))):
    """DeepCompile settings; applied when the script calls engine.compile()."""

    deepcompile: bool = key(
        False, "Use DeepCompile instead of plain torch.compile.", since="0.16.6"
    )
    passes: list[Literal["z1", "z3", "autosp", "autotp"]] | None = key(
        None, "Parallelism passes to apply.", since="0.18.9", read_as=ReadAs.PASSES
    )
    autoep_non_moe: bool = key(False, "Compile the layers outside AutoEP blocks.", since="0.19.8")

    # Memory.
    free_activation: bool = key(
        False, "Free large activations early.", since="0.16.6", memory="fewer live activations"
    )
    free_activation_threshold: Integer = key(
        10_485_760,
        "Minimum size of activations that are freed early.",
        unit="bytes",
        since="0.18.0",
    )
    offload_activation: bool = key(
        False,
        "Offload saved activations to the CPU.",
        since="0.16.6",
        memory="saved activations move to host memory",
    )
    offload_activation_pin_memory: bool = key(
        True, "Use pinned host memory for offloaded activations.", since="0.19.6"
    )
    offload_opt_states: bool = key(
        False,
        "Offload optimizer states to the CPU during forward and backward.",
        since="0.16.6",
        memory="optimizer states are on the device only during the step",
    )
    offload_parameters: bool = key(
        False,
        "Offload parameters to the CPU; enabled if both offload devices are cpu.",
        since="0.16.6",
    )
    double_buffer: bool = key(True, "Use two buffers for gathered parameters.", since="0.16.6")
    symmetric_memory: bool = key(False, "Use symmetric memory for collectives.", since="0.16.6")

    # Debugging.
    debug_log: bool = key(False, "Write the graphs to files.", since="0.16.6")
    sync_before_reduce: bool = key(False, "Synchronize before reductions.", since="0.16.6")
    sync_after_reduce: bool = key(False, "Synchronize after reductions.", since="0.16.6")
    sync_before_allgather: bool = key(False, "Synchronize before all-gathers.", since="0.16.6")
    sync_after_allgather: bool = key(False, "Synchronize after all-gathers.", since="0.16.6")
    keep_int_input_tensors: bool = key(
        True, "Keep integer input tensors for profiling.", since="0.17.2"
    )
    keep_all_input_tensors: bool = key(
        False, "Keep all input tensors for profiling.", since="0.17.2"
    )

    # torch.compile settings, before engine.compile() accepted them as arguments.
    enabled: bool = key(False, "Enables torch.compile.", until="0.14.3")
    backend: str = key("inductor", "Backend of torch.compile.", until="0.14.3")
    kwargs: OrAbsent[dict[str, Any]] = key(None, "Arguments of torch.compile.", until="0.14.3")
