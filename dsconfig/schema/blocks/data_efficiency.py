"""Data sampling and routing."""

from typing import Any, Literal

from dsconfig.schema.declare import REQUIRED, Block, key
from dsconfig.schema.types import Integer, Number, OrAbsent


class ScheduleConfig(Block, since="0.8.0"):
    """Arguments of the schedule."""

    total_curriculum_step: OrAbsent[Integer] = key(
        None, "Steps from easiest to hardest (linear and root).", unit="steps"
    )
    difficulty_step: OrAbsent[Integer] = key(None, "Granularity; not a multiple of 8 only warns.")
    root_degree: OrAbsent[Number] = key(None, "Degree of the root (root only).")
    difficulty: OrAbsent[list[Integer]] = key(
        None, "Difficulties (discrete); one more than max_step."
    )
    max_step: OrAbsent[list[Integer]] = key(
        None, "Last step of each difficulty (discrete).", unit="steps"
    )


class CurriculumMetrics(Block, since="0.8.0"):
    """One entry per metric; required when enabled."""

    index_to_sample_path: OrAbsent[str] = key(None, "File that maps difficulty index to samples.")
    index_to_metric_path: OrAbsent[str] = key(None, "File that maps index to metric value.")
    clustering_type: OrAbsent[Literal["single_cluster", "schedule_based"]] = key(
        None, "single_cluster keeps the data whole; anything else clusters by schedule."
    )
    difficulty_type: OrAbsent[Literal["value", "percentile"]] = key(
        None, "Difficulty by value or by percentile."
    )
    min_difficulty: Integer = key(REQUIRED, "Start difficulty; required.")
    max_difficulty: Integer = key(REQUIRED, "Final difficulty; required.")
    schedule_type: Literal["fixed_discrete", "fixed_linear", "fixed_root", "custom"] = key(
        REQUIRED, "How difficulty grows; required."
    )
    schedule_config: OrAbsent[ScheduleConfig] = key(None, "Arguments of the schedule.")


class CurriculumLearning(Block, since="0.8.0"):
    """Curriculum learning."""

    enabled: bool = key(False, "Turns it on by itself, whatever the parents say.")
    data_cluster_path: OrAbsent[str] = key(
        None, "Directory for the difficulty clusters; required with non-single clusters."
    )
    curriculum_metrics: dict[str, CurriculumMetrics] = key(
        REQUIRED, "One entry per metric; required when enabled.", checked="0.8.0"
    )


class DynamicBatching(Block, since="0.16.5"):
    """Batches of varying size with matching learning-rate scaling."""

    enabled: bool = key(False, "Turns it on.")
    metrics_path: OrAbsent[str] = key(None, "Directory with sequence-length metrics.")
    lr_scaling_method: Literal["linear", "sqrt", "none"] = key(
        "linear", "How lr follows batch size; not checked at parse."
    )
    min_batch_size: Integer = key(1, "Smallest batch.")
    max_batch_size: Integer | None = key(None, "Largest batch.")
    sequence_picking_order: Literal["random", "seqlen", "dataloader"] = key(
        "dataloader", "Order in which sequences are packed; not checked at parse."
    )
    max_tokens: OrAbsent[Integer] = key(
        None, "Token budget per batch; required when enabled.", unit="tokens"
    )
    verbose: bool = key(False, "Prints the batches.")


class DataSampling(Block, since="0.8.0"):
    """Sampling techniques."""

    enabled: bool = key(False, "Stored switch.")
    num_epochs: Integer = key(1000, "Most passes over the data.")
    num_workers: Integer = key(0, "Loader workers.")
    pin_memory: bool = key(False, "Pins loader memory.", since="0.16.5")
    curriculum_learning: OrAbsent[CurriculumLearning] = key(None, "Curriculum learning.")
    dynamic_batching: OrAbsent[DynamicBatching] = key(
        None, "Batches of varying size with matching learning-rate scaling.", since="0.16.5"
    )


class RandomLtdScheduleScheduleConfig(Block, since="0.8.0"):
    """Arguments of the schedule."""

    require_steps: Integer = key(REQUIRED, "Steps until all tokens are kept.", unit="steps")
    seq_per_step: Integer = key(REQUIRED, "Granularity of the kept length.")


class RandomLtdSchedule(Block, since="0.8.0"):
    """Kept-token schedule; KeyError when absent."""

    min_value: Integer = key(REQUIRED, "Tokens kept at the start.")
    max_value: Integer = key(REQUIRED, "Tokens kept at the end.")
    schedule_type: Literal["fixed_linear"] = key(REQUIRED, "Only fixed_linear exists.")
    schedule_config: RandomLtdScheduleScheduleConfig = key(REQUIRED, "Arguments of the schedule.")


class LayerTokenLrSchedule(Block, since="0.8.0"):
    """Layer-token learning-rate schedule; work in progress. KeyError when absent."""

    enabled: bool = key(False, "True raises NotImplementedError.")
    total_layer_tokens: Any = key(None, "Constant is declared, feature is not implemented.")
    warmup_type: Any = key(None, "Constant is declared, feature is not implemented.")
    warmup_layer_tokens: Any = key(None, "Constant is declared, feature is not implemented.")


class RandomLtd(Block, since="0.8.0"):
    """Random layerwise token dropping."""

    enabled: bool = key(False, "Turns it on by itself, whatever the parents say.")
    total_layer_num: Integer = key(REQUIRED, "Layers in the model; KeyError when absent.")
    random_ltd_layer_num: Integer = key(REQUIRED, "Layers that drop tokens; KeyError when absent.")
    random_ltd_layer_id: OrAbsent[list[Integer]] = key(
        None, "Ids of those layers; the count must match."
    )
    model_mask_name: OrAbsent[str] = key(None, "Name of the attention-mask argument.")
    model_type: OrAbsent[Literal["decoder", "encoder"]] = key(None, "decoder or encoder.")
    hidden_state_order: OrAbsent[str] = key(None, "Axis order of the hidden states.")
    micro_batch_size: OrAbsent[Integer] = key(None, "Overwritten by the engine.")
    global_batch_size: OrAbsent[Integer] = key(None, "Overwritten by the engine.")
    random_ltd_schedule: RandomLtdSchedule = key(
        REQUIRED, "Kept-token schedule; KeyError when absent."
    )
    layer_token_lr_schedule: OrAbsent[LayerTokenLrSchedule] = key(
        None, "Layer-token learning-rate schedule; work in progress. KeyError when absent."
    )


class DataRouting(Block, since="0.8.0"):
    """Routing techniques."""

    enabled: bool = key(False, "Stored switch.")
    random_ltd: OrAbsent[RandomLtd] = key(None, "Random layerwise token dropping.")


class DataEfficiency(Block, since="0.8.0"):
    """Data sampling and routing; unknown keys are ignored."""

    enabled: bool = key(False, "Stored; the engine looks only at the inner switches.")
    seed: Integer = key(1234, "Seed of the sampler.")
    data_sampling: OrAbsent[DataSampling] = key(None, "Sampling techniques.")
    data_routing: OrAbsent[DataRouting] = key(None, "Routing techniques.")
