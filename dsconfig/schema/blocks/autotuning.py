"""The autotuner."""

from typing import Any, Literal

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer


class ModelInfo(Block, since="0.5.7"):
    """Facts about the model, or a request to profile them."""

    profile: bool = key(False, "Measures the model instead of trusting the numbers.")
    num_params: Integer | None = key(None, "Parameter count.")
    hidden_size: Integer | None = key(None, "Hidden width.", since="0.9.3")
    num_layers: Integer | None = key(None, "Layer count.")
    hideen_size: Integer | None = key(
        None,
        "Misspelt name of hidden_size.",
        until="0.9.2",
        replaced_by="autotuning.model_info.hidden_size",
    )


class Autotuning(Block, since="0.5.7"):
    """Autotuner settings; unknown keys are ignored. Under the autotuner other keys may hold lists of candidates."""

    enabled: bool = key(False, "Marks a tuning run.")
    fast: bool = key(True, "Tunes only micro batch size and ZeRO stage.")
    results_dir: str = key(
        "autotuning_results", "Directory for results; empty is refused.", was={"0.7.5": None}
    )
    exps_dir: str = key(
        "autotuning_exps", "Directory for experiment files; empty is refused.", was={"0.7.5": None}
    )
    overwrite: bool = key(True, "Overwrites earlier experiments.")
    start_profile_step: Integer = key(3, "First measured step.", unit="steps")
    end_profile_step: Integer = key(5, "Last measured step.", unit="steps")
    metric: Literal["latency", "throughput", "flops"] = key(
        "throughput", "What is optimised; the value is not checked at parse."
    )
    metric_path: str | None = key(None, "File for the measured metric.")
    tuner_type: Literal["gridsearch", "random", "model_based"] = key(
        "gridsearch", "Search method; not checked at parse."
    )
    tuner_early_stopping: Integer = key(5, "Experiments without gain before stopping.")
    tuner_num_trials: Integer = key(50, "Most experiments per space.")
    arg_mappings: dict[str, Any] | None = key(
        None, "Maps config keys to command-line flags of the user script."
    )
    max_train_batch_size: Integer | None = key(
        None, "Upper bound of the global batch.", unit="samples"
    )
    min_train_batch_size: Integer = key(1, "Lower bound of the global batch.", unit="samples")
    max_train_micro_batch_size_per_gpu: Integer = key(
        1024, "Upper bound of the micro batch.", unit="samples"
    )
    min_train_micro_batch_size_per_gpu: Integer = key(
        1, "Lower bound of the micro batch.", unit="samples"
    )
    num_tuning_micro_batch_sizes: Integer = key(3, "Micro batch sizes to try.")
    mp_size: Integer = key(1, "Model-parallel degree.")
    model_info_path: str | None = key(None, "File for the profiled model facts.")
    model_info: ModelInfo | None = key(None, "Facts about the model, or a request to profile them.")
