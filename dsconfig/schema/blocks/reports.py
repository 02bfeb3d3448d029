"""Monitors, communication logging, FLOPs profiler and timers."""

from typing import Any

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, Number, OrAbsent
from dsconfig.schema.value_checks import SWITCH


class Monitor(Block, nested=True, auto_ignored_since="0.8.1"):
    """Monitor."""


class TensorBoard(Monitor, closed="0.6.6"):
    """TensorBoard monitor."""

    enabled: bool = key(False, "Enables the TensorBoard monitor.")
    output_path: str = key("", "Directory for event files.")
    job_name: str = key("DeepSpeedJobName", "Subdirectory of the run.")


class Wandb(Monitor, since="0.6.6", closed="0.6.6"):
    """Weights & Biases monitor."""

    enabled: bool = key(False, "Enables the Weights & Biases monitor.")
    group: str | None = key(None, "Group of the run.")
    team: str | None = key(None, "Team (entity) of the run.")
    project: str = key("deepspeed", "Project of the run.")


class Comet(Monitor, since="0.14.3", closed="0.14.3"):
    """Comet monitor."""

    enabled: bool = key(False, "Enables the Comet monitor.")
    samples_log_interval: Integer = key(100, "Samples between two reports.")
    project: str | None = key(None, "Project of the experiment.")
    workspace: str | None = key(None, "Workspace of the project.")
    api_key: str | None = key(
        None, "API key (secret); prefer the COMET_API_KEY environment variable."
    )
    experiment_name: str | None = key(None, "Name of the experiment.")
    experiment_key: str | None = key(None, "Experiment key, 32 to 50 alphanumeric characters.")
    online: bool | None = key(None, "false: write to a local file instead.")
    mode: str | None = key(None, "One of get, create, get_or_create.")


class CsvMonitor(Monitor, since="0.6.6", closed="0.6.6"):
    """CSV monitor."""

    enabled: bool = key(False, "Enables the CSV monitor.")
    output_path: str = key("", "Directory for CSV files.")
    job_name: str = key("DeepSpeedJobName", "Subdirectory of the run.")


class CommsLogger(Block, since="0.7.0", closed="0.7.0"):
    """Communication logger."""

    enabled: bool = key(False, "Enables communication logging.")
    prof_all: bool = key(True, "Profile all operations.")
    prof_ops: list[Any] = key([], "Operations to profile if prof_all is false.")
    verbose: bool = key(False, "Print each operation immediately.")
    debug: bool = key(False, "Add the name of the calling function.")


class FlopsProfiler(Block, since="0.3.11"):
    """FLOPs profiler of one step, per module."""

    enabled: bool = key(False, "Enables the FLOPs profiler.", checks=(SWITCH,))
    recompute_fwd_factor: Number = key(
        0.0, "Fraction of forward that is recomputed.", since="0.9.3"
    )
    profile_step: Integer = key(1, "Global step to profile.", unit="steps", since="0.3.12")
    module_depth: Integer = key(-1, "Depth of the printed module tree; -1: innermost modules.")
    top_modules: Integer = key(1, "Number of modules listed per depth.", was={"0.4.0": 3})
    detailed: bool = key(True, "Print every module.", since="0.3.12")
    output_file: str | None = key(None, "Output file; null: print to stdout.", since="0.4.0")
    start_step: Integer = key(
        5,
        "First profiled step.",
        replaced_by="flops_profiler.profile_step",
        renamed="0.3.12",
    )
    end_step: Integer = key(
        6,
        "Step after the last profiled step.",
        replaced_by="flops_profiler.profile_step",
        renamed="0.3.12",
        instead='write "profile_step"',
    )


class Throughput(Block, since="0.14.3", closed="0.14.3"):
    """Throughput timer."""

    enabled: bool = key(True, "Enables the throughput timer.")
    synchronized: bool = key(True, "Synchronize the device for accurate timing.")


class Timers(Block, since="0.14.3"):
    """Timers."""

    throughput: OrAbsent[Throughput] = key(None, "Throughput timer.")
