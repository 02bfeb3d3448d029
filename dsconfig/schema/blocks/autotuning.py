"""The autotuner: short runs that look for the fastest setting."""

from typing import Any, Literal

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer
from dsconfig.schema.value_checks import A_BLOCK_OR_NULL, A_DIRECTORY


class ModelInfo(Block, since="0.5.7"):
    """Facts about the model, or a wish to have them measured."""

    profile: bool = key(False, "Measures the model rather than trusting the figures.")
    num_params: Integer | None = key(None, "Number of parameters.")
    hidden_size: Integer | None = key(None, "Hidden width.", since="0.9.3")
    num_layers: Integer | None = key(None, "Number of layers.")
    hideen_size: Integer | None = key(
        None,
        "hidden_size as releases up to 0.9.2 misspelt it.",
        replaced_by="autotuning.model_info.hidden_size",
        renamed="0.9.3",
    )


class Autotuning(Block, since="0.5.7"):
    """The autotuner; under it other keys may hold lists of candidates."""

    enabled: bool = key(False, "Marks a tuning run.")
    fast: bool = key(True, "Tunes micro batch and ZeRO stage alone.")
    results_dir: str = key(
        "autotuning_results",
        "Directory of the results; not empty.",
        was={"0.7.5": None},
        checks=(A_DIRECTORY,),
    )
    exps_dir: str = key(
        "autotuning_exps",
        "Directory of the experiments; not empty.",
        was={"0.7.5": None},
        checks=(A_DIRECTORY,),
    )
    overwrite: bool = key(True, "Overwrites earlier experiments.")
    start_profile_step: Integer = key(3, "First measured step.", unit="steps")
    end_profile_step: Integer = key(5, "Last measured step.", unit="steps")
    metric: Literal["latency", "throughput", "flops"] = key("throughput", "What is optimised.")
    metric_path: str | None = key(None, "File with the measured metric.")
    tuner_type: Literal["gridsearch", "random", "model_based"] = key(
        "gridsearch", "How the space is searched."
    )
    tuner_early_stopping: Integer = key(5, "Experiments without gain before it stops.")
    tuner_num_trials: Integer = key(50, "Most experiments per space.")
    arg_mappings: dict[str, Any] | None = key(
        None, "Which flag of the training script sets which key."
    )
    max_train_batch_size: Integer | None = key(None, "Largest global batch.", unit="samples")
    min_train_batch_size: Integer = key(1, "Smallest global batch.", unit="samples")
    max_train_micro_batch_size_per_gpu: Integer = key(1024, "Largest micro batch.", unit="samples")
    min_train_micro_batch_size_per_gpu: Integer = key(1, "Smallest micro batch.", unit="samples")
    num_tuning_micro_batch_sizes: Integer = key(3, "Micro batches to try.")
    mp_size: Integer = key(1, "Model-parallel degree.")
    model_info_path: str | None = key(None, "File with measured facts about the model.")
    model_info: ModelInfo | None = key(None, "Facts about the model.", checks=(A_BLOCK_OR_NULL,))
