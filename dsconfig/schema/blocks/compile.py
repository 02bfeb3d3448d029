"""DeepCompile: graph passes that schedule ZeRO's communication."""

from typing import Any, Literal

from dsconfig.schema.declare import Block, ReadAs, key
from dsconfig.schema.types import Integer, OrAbsent


class Compile(Block, since="0.13.2", closed=(("0.13.2", "0.14.3"), ("0.16.6", None))):
    """DeepCompile; acts when the script calls engine.compile()."""

    deepcompile: bool = key(False, "Uses DeepCompile rather than plain torch.", since="0.16.6")
    passes: list[Literal["z1", "z3", "autosp", "autotp"]] | None = key(
        None, "Parallel passes to compose.", since="0.18.9", read_as=ReadAs.PASSES
    )
    autoep_non_moe: bool = key(False, "Compiles what surrounds AutoEP's layers.", since="0.19.8")

    # Memory.
    free_activation: bool = key(
        False, "Frees large activations early.", since="0.16.6", memory="fewer live activations"
    )
    free_activation_threshold: Integer = key(
        10_485_760, "Smallest activation that is freed early.", unit="bytes", since="0.18.0"
    )
    offload_activation: bool = key(
        False,
        "Moves saved activations to host memory.",
        since="0.16.6",
        memory="saved activations leave the device",
    )
    offload_activation_pin_memory: bool = key(True, "Page-locked buffers for them.", since="0.19.6")
    offload_opt_states: bool = key(
        False,
        "Moves optimizer states to the host during forward and backward.",
        since="0.16.6",
        memory="optimizer states leave the device outside the step",
    )
    offload_parameters: bool = key(
        False, "Moves parameters to the host; on where both offloads are cpu.", since="0.16.6"
    )
    double_buffer: bool = key(True, "Two buffers for gathered parameters.", since="0.16.6")
    symmetric_memory: bool = key(False, "Collectives over symmetric memory.", since="0.16.6")

    # Debugging.
    debug_log: bool = key(False, "Writes the graphs out.", since="0.16.6")
    sync_before_reduce: bool = key(False, "Waits before reductions.", since="0.16.6")
    sync_after_reduce: bool = key(False, "Waits after reductions.", since="0.16.6")
    sync_before_allgather: bool = key(False, "Waits before gathers.", since="0.16.6")
    sync_after_allgather: bool = key(False, "Waits after gathers.", since="0.16.6")
    keep_int_input_tensors: bool = key(True, "Stores integer inputs whole.", since="0.17.2")
    keep_all_input_tensors: bool = key(False, "Stores all inputs whole.", since="0.17.2")

    # torch.compile, before engine.compile() took its arguments itself.
    enabled: bool = key(False, "Turned torch.compile on.", until="0.14.3")
    backend: str = key("inductor", "Backend of torch.compile.", until="0.14.3")
    kwargs: OrAbsent[dict[str, Any]] = key(None, "Arguments of torch.compile.", until="0.14.3")
