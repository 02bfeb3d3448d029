"""DeepCompile."""

from typing import Any

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, OrAbsent


class Compile(Block, since="0.13.2", closed="0.16.6"):
    """DeepCompile and torch.compile settings; they act only when engine.compile() is called."""

    deepcompile: bool = key(False, "Uses the DeepCompile graph passes.", since="0.16.6")
    autoep_non_moe: bool = key(
        False, "Compiles the parts around AutoEP layers only.", since="0.19.8"
    )
    free_activation: bool = key(False, "Frees large activations early.", since="0.16.6")
    free_activation_threshold: Integer = key(
        10_485_760, "Smallest activation that is freed early.", unit="bytes", since="0.18.0"
    )
    offload_activation: bool = key(False, "Moves saved activations to host memory.", since="0.16.6")
    offload_activation_pin_memory: bool = key(
        True, "Pins the host buffers used for that.", since="0.19.6"
    )
    offload_opt_states: bool = key(
        False, "Moves optimizer states to the host during forward and backward.", since="0.16.6"
    )
    double_buffer: bool = key(True, "Double-buffers gathered parameters.", since="0.16.6")
    symmetric_memory: bool = key(False, "Uses symmetric memory collectives.", since="0.16.6")
    debug_log: bool = key(False, "Dumps the graphs.", since="0.16.6")
    offload_parameters: bool = key(
        False,
        "Offloads parameters; switched on by itself when both offloads are cpu.",
        since="0.16.6",
    )
    sync_before_reduce: bool = key(False, "Synchronises before reductions.", since="0.16.6")
    sync_after_reduce: bool = key(False, "Synchronises after reductions.", since="0.16.6")
    sync_before_allgather: bool = key(False, "Synchronises before gathers.", since="0.16.6")
    sync_after_allgather: bool = key(False, "Synchronises after gathers.", since="0.16.6")
    keep_int_input_tensors: bool = key(
        True, "Keeps real integer inputs in the input store.", since="0.17.2"
    )
    keep_all_input_tensors: bool = key(False, "Keeps all real inputs there.", since="0.17.2")
    passes: list[str] | None = key(None, "Which parallel passes are composed.", since="0.18.9")
    enabled: bool = key(
        False, "Turned torch.compile on; engine.compile() replaced it.", until="0.14.3"
    )
    backend: str = key(
        "inductor", "torch.compile backend; an argument of engine.compile() today.", until="0.14.3"
    )
    kwargs: OrAbsent[dict[str, Any]] = key(
        None, "Arguments of torch.compile; arguments of engine.compile() today.", until="0.14.3"
    )
