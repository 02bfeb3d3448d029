"""Autotuner settings."""

from typing import Any, Literal

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer
from dsconfig.schema.value_checks import A_BLOCK_OR_NULL, A_DIRECTORY


class ModelInfo(Block, since="0.5.7"):
    """Model facts, given or to be measured."""

    profile: bool = key(False, "Measure the model instead of using the given numbers.")
    num_params: Integer | None = key(None, "Number of parameters.")
    hidden_size: Integer | None = key(None, "Hidden size.", since="0.9.3")
    num_layers: Integer | None = key(None, "Number of layers.")
    hideen_size: Integer | None = key(
        None,
        "Misspelling of hidden_size in releases up to 0.9.2.",
        replaced_by="autotuning.model_info.hidden_size",
        renamed="0.9.3",
    )


class Autotuning(Block, since="0.5.7"):
    """Autotuner settings; while it is enabled, other keys may hold lists of candidates."""

    enabled: bool = key(False, "Enables autotuning.")
    fast: bool = key(True, "Tune only the micro batch and the ZeRO stage.")
    results_dir: str = key(
        "autotuning_results",
        "Directory for results; must not be an empty string.",
        was={"0.7.5": None},
        checks=(A_DIRECTORY,),
    )
    exps_dir: str = key(
        "autotuning_exps",
        "Directory for experiments; must not be an empty string.",
        was={"0.7.5": None},
        checks=(A_DIRECTORY,),
    )
    overwrite: bool = key(True, "Overwrite earlier experiments.")
    start_profile_step: Integer = key(3, "First measured step.", unit="steps")
    end_profile_step: Integer = key(5, "Last measured step.", unit="steps")
    metric: Literal["latency", "throughput", "flops"] = key("throughput", "Metric to optimize.")
    metric_path: str | None = key(None, "File with the measured metric.")
    tuner_type: Literal["gridsearch", "random", "model_based"] = key(
        "gridsearch", "Search strategy."
    )
    tuner_early_stopping: Integer = key(5, "Stop after this many experiments without improvement.")
    tuner_num_trials: Integer = key(50, "Maximum number of experiments per search space.")
    arg_mappings: dict[str, Any] | None = key(
        None, "Mapping from keys to flags of the training script."
    )
    max_train_batch_size: Integer | None = key(None, "Maximum global batch.", unit="samples")
    min_train_batch_size: Integer = key(1, "Minimum global batch.", unit="samples")
    max_train_micro_batch_size_per_gpu: Integer = key(1024, "Maximum micro batch.", unit="samples")
    min_train_micro_batch_size_per_gpu: Integer = key(1, "Minimum micro batch.", unit="samples")
    num_tuning_micro_batch_sizes: Integer = key(3, "Number of micro batch sizes to try.")
    mp_size: Integer = key(1, "Model-parallel degree.")
    model_info_path: str | None = key(None, "File with measured model facts.")
    model_info: ModelInfo | None = key(None, "Model facts.", checks=(A_BLOCK_OR_NULL,))
