"""Where training curves are written."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer


class TensorBoard(Block, closed="0.6.6"):
    """TensorBoard output."""

    enabled: bool = key(False, "Turns it on.")
    output_path: str = key("", "Directory for event files.")
    job_name: str = key("DeepSpeedJobName", "Sub-directory name.")


class Wandb(Block, since="0.6.6", closed="0.6.6"):
    """Weights & Biases output."""

    enabled: bool = key(False, "Turns it on.")
    group: str | None = key(None, "Group name.")
    team: str | None = key(None, "Entity name.")
    project: str = key("deepspeed", "Project name.")


class Comet(Block, since="0.14.3", closed="0.14.3"):
    """Comet output."""

    enabled: bool = key(False, "Turns it on.")
    samples_log_interval: Integer = key(100, "Samples between submissions.")
    project: str | None = key(None, "Project name.")
    workspace: str | None = key(None, "Workspace name.")
    api_key: str | None = key(None, "Secret key; better kept in the environment.")
    experiment_name: str | None = key(None, "Experiment name.")
    experiment_key: str | None = key(
        None, "Experiment id, 32 to 50 letters and digits (not checked)."
    )
    online: bool | None = key(None, "False keeps the data in a local file.")
    mode: str | None = key(None, "get, create or get_or_create (not checked).")


class CsvMonitor(Block, since="0.6.6", closed="0.6.6"):
    """CSV output."""

    enabled: bool = key(False, "Turns it on.")
    output_path: str = key("", "Directory for the files.")
    job_name: str = key("DeepSpeedJobName", "Sub-directory name.")
