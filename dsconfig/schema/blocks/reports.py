"""What DeepSpeed reports while it trains: monitors, logs of collectives, profiles, timers."""

from typing import Any

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, Number, OrAbsent
from dsconfig.schema.value_checks import SWITCH


class Monitor(Block, nested=True, auto_ignored_since="0.8.1"):
    """A place for curves."""


class TensorBoard(Monitor, closed="0.6.6"):
    """Curves for TensorBoard."""

    enabled: bool = key(False, "Turns TensorBoard on.")
    output_path: str = key("", "Directory of the event files.")
    job_name: str = key("DeepSpeedJobName", "Name of the run below it.")


class Wandb(Monitor, since="0.6.6", closed="0.6.6"):
    """Curves for Weights & Biases."""

    enabled: bool = key(False, "Turns Weights & Biases on.")
    group: str | None = key(None, "Group of the run.")
    team: str | None = key(None, "Entity that owns the run.")
    project: str = key("deepspeed", "Project of the run.")


class Comet(Monitor, since="0.14.3", closed="0.14.3"):
    """Curves for Comet."""

    enabled: bool = key(False, "Turns Comet on.")
    samples_log_interval: Integer = key(100, "Samples between two reports.")
    project: str | None = key(None, "Project of the experiment.")
    workspace: str | None = key(None, "Workspace of the project.")
    api_key: str | None = key(None, "Secret; better kept in the environment.")
    experiment_name: str | None = key(None, "Name of the experiment.")
    experiment_key: str | None = key(None, "Id of the experiment, 32 to 50 letters and digits.")
    online: bool | None = key(None, "False keeps the data in a local file.")
    mode: str | None = key(None, "get, create or get_or_create.")


class CsvMonitor(Monitor, since="0.6.6", closed="0.6.6"):
    """Curves as CSV files."""

    enabled: bool = key(False, "Turns the files on.")
    output_path: str = key("", "Directory of the files.")
    job_name: str = key("DeepSpeedJobName", "Name of the run below it.")


class CommsLogger(Block, since="0.7.0", closed="0.7.0"):
    """A log of collectives, with sizes and times."""

    enabled: bool = key(False, "Turns the log on.")
    prof_all: bool = key(True, "Measures every operation.")
    prof_ops: list[Any] = key([], "Operations to measure where prof_all is false.")
    verbose: bool = key(False, "Prints each operation at once.")
    debug: bool = key(False, "Adds the name of the caller.")


class FlopsProfiler(Block, since="0.3.11"):
    """Counts the floating-point operations of one step, module by module."""

    enabled: bool = key(False, "Turns the profiler on.", checks=(SWITCH,))
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
        replaced_by="flops_profiler.profile_step",
        renamed="0.3.12",
    )
    end_step: Integer = key(
        6,
        "First step after it.",
        replaced_by="flops_profiler.profile_step",
        renamed="0.3.12",
        instead='write "profile_step"',
    )


class Throughput(Block, since="0.14.3", closed="0.14.3"):
    """The timer of samples per second."""

    enabled: bool = key(True, "Turns the timer on.")
    synchronized: bool = key(True, "Waits for the device, for exact figures.")


class Timers(Block, since="0.14.3"):
    """Which timers run."""

    throughput: OrAbsent[Throughput] = key(None, "The timer of samples per second.")
