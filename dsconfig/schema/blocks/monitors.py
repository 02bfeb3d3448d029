"""Where training curves go: TensorBoard, Weights & Biases, Comet, CSV files."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer


class Monitor(Block, nested=True, drops_auto="0.8.1"):
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
