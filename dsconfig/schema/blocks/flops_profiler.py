"""The FLOPs profiler."""

from dsconfig.schema.by_hand import SWITCH
from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, Number


class FlopsProfiler(Block, since="0.3.11"):
    """Counts the floating-point operations of one step, module by module."""

    enabled: bool = key(False, "Turns the profiler on.", by_hand=(SWITCH,))
    recompute_fwd_factor: Number = key(
        0.0, "Share of a forward pass that checkpointing repeats.", since="0.9.3"
    )
    profile_step: Integer = key(1, "Global step that is profiled.", unit="steps", since="0.3.12")
    module_depth: Integer = key(-1, "Depth of the printed tree; -1 is the innermost.")
    top_modules: Integer = key(1, "Modules listed per depth.", was={"0.4.0": 3})
    detailed: bool = key(True, "Prints every module.", since="0.3.12")
    output_file: str | None = key(None, "File of the report; null prints it.", since="0.4.0")
    start_step: Integer = key(
        5,
        "First profiled step.",
        until="0.3.11",
        replaced_by="flops_profiler.profile_step",
        renamed="0.3.12",
    )
    end_step: Integer = key(
        6,
        "First step after it.",
        until="0.3.11",
        replaced_by="flops_profiler.profile_step",
        renamed="0.3.12",
        instead='write "profile_step"',
    )
