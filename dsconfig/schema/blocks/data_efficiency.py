"""Data sampling (curriculum, dynamic batching) and data routing (token dropping)."""

from typing import Any, Literal

from dsconfig.schema.declare import REQUIRED, Block, key
from dsconfig.schema.types import Integer, Number, OrAbsent
from dsconfig.schema.value_checks import A_BLOCK, AS_INTEGER


class ScheduleConfig(Block, since="0.8.0"):
    """Difficulty schedule of one metric."""

    total_curriculum_step: OrAbsent[Integer] = key(
        None, "Steps from minimum to maximum difficulty; linear and root schedules.", unit="steps"
    )
    difficulty_step: OrAbsent[Integer] = key(
        None, "Granularity of the difficulty; DeepSpeed warns unless it is a multiple of 8."
    )
    root_degree: OrAbsent[Number] = key(None, "Degree of the root schedule.")
    difficulty: OrAbsent[list[Integer]] = key(
        None, "Difficulty levels of the discrete schedule; one more than max_step has entries."
    )
    max_step: OrAbsent[list[Integer]] = key(
        None, "Last step of each difficulty level of the discrete schedule.", unit="steps"
    )


class CurriculumMetric(Block, since="0.8.0"):
    """Difficulty metric."""

    index_to_sample_path: OrAbsent[str] = key(None, "File that maps difficulties to samples.")
    index_to_metric_path: OrAbsent[str] = key(None, "File that maps difficulties to metric values.")
    clustering_type: OrAbsent[Literal["single_cluster", "schedule_based"]] = key(
        None, "A single cluster, or clusters that follow the schedule."
    )
    difficulty_type: OrAbsent[Literal["value", "percentile"]] = key(
        None, "Use the metric's value or its percentile as difficulty."
    )
    min_difficulty: Integer = key(REQUIRED, "Initial difficulty.")
    max_difficulty: Integer = key(REQUIRED, "Final difficulty.")
    schedule_type: Literal["fixed_discrete", "fixed_linear", "fixed_root", "custom"] = key(
        REQUIRED, "Shape of the schedule."
    )
    schedule_config: OrAbsent[ScheduleConfig] = key(None, "Arguments of the schedule.")


class CurriculumLearning(Block, since="0.8.0"):
    """Curriculum learning: easy samples first. Its own switch decides, not its parents'."""

    enabled: bool = key(False, "Enables curriculum learning.")
    data_cluster_path: OrAbsent[str] = key(
        None, "Directory for difficulty clusters; required unless there is a single cluster."
    )
    curriculum_metrics: OrAbsent[dict[str, CurriculumMetric]] = key(
        None,
        "Difficulty metrics by name.",
        checked="0.8.0",
        required_when="enabled",
    )


class DynamicBatching(Block, since="0.16.5"):
    """Batches of varying size, with a scaled learning rate."""

    enabled: bool = key(False, "Enables dynamic batching.")
    metrics_path: OrAbsent[str] = key(None, "Directory with measured sequence lengths.")
    lr_scaling_method: Literal["linear", "sqrt", "none"] = key(
        "linear", "Scaling of the learning rate with the batch size."
    )
    min_batch_size: Integer = key(1, "Minimum batch size.", checks=(AS_INTEGER,))
    max_batch_size: Integer | None = key(
        None, "Maximum batch size; null: no limit.", checks=(AS_INTEGER,)
    )
    sequence_picking_order: Literal["random", "seqlen", "dataloader"] = key(
        "dataloader", "Order in which sequences are packed."
    )
    max_tokens: OrAbsent[Integer] = key(
        None, "Maximum tokens per batch; required while enabled.", unit="tokens"
    )
    verbose: bool = key(False, "Print the batches.")


class DataSampling(Block, since="0.8.0"):
    """Data sampling: the order of samples."""

    enabled: bool = key(False, "Stored by DeepSpeed but never used.")
    num_epochs: Integer = key(1000, "Maximum number of epochs.")
    num_workers: Integer = key(0, "Data loader worker processes.")
    pin_memory: bool = key(False, "Load batches into pinned memory.", since="0.16.5")
    curriculum_learning: OrAbsent[CurriculumLearning] = key(
        None, "Curriculum learning: easy samples first.", checks=(A_BLOCK,)
    )
    dynamic_batching: OrAbsent[DynamicBatching] = key(
        None, "Batches of varying size.", since="0.16.5", checks=(A_BLOCK,)
    )


class TokenScheduleConfig(Block, since="0.8.0"):
    """Growth of the kept sequence length."""

    require_steps: Integer = key(REQUIRED, "Steps until all tokens are kept.", unit="steps")
    seq_per_step: Integer = key(REQUIRED, "Granularity of the kept length.")


class TokenSchedule(Block, since="0.8.0"):
    """Schedule of the number of kept tokens."""

    min_value: Integer = key(REQUIRED, "Initial number of kept tokens.")
    max_value: Integer = key(REQUIRED, "Final number of kept tokens.")
    schedule_type: Literal["fixed_linear"] = key(REQUIRED, "Shape of the schedule.")
    schedule_config: TokenScheduleConfig = key(REQUIRED, "Arguments of the schedule.")


class LayerTokenSchedule(Block, since="0.8.0"):
    """Learning rate by tokens per layer; declared but not implemented."""

    enabled: bool = key(False, "True raises NotImplementedError.")
    total_layer_tokens: Any = key(None, "Declared by DeepSpeed but never read.")
    warmup_type: Any = key(None, "Declared by DeepSpeed but never read.")
    warmup_layer_tokens: Any = key(None, "Declared by DeepSpeed but never read.")


class RandomLTD(Block, since="0.8.0"):
    """Random layerwise token dropping. Its own switch decides, not its parents'."""

    enabled: bool = key(False, "Enables token dropping.")
    total_layer_num: OrAbsent[Integer] = key(
        None, "Number of layers of the model.", required_when="enabled"
    )
    random_ltd_layer_num: OrAbsent[Integer] = key(
        None, "Number of layers that drop tokens.", required_when="enabled"
    )
    random_ltd_layer_id: OrAbsent[list[Integer]] = key(
        None, "Indices of these layers; random_ltd_layer_num entries."
    )
    model_mask_name: OrAbsent[str] = key(None, "Name of the attention-mask argument.")
    model_type: OrAbsent[Literal["decoder", "encoder"]] = key(None, "Type of the model.")
    hidden_state_order: OrAbsent[str] = key(None, "Order of the dimensions of hidden states.")
    micro_batch_size: OrAbsent[Integer] = key(None, "Overwritten by the engine.")
    global_batch_size: OrAbsent[Integer] = key(None, "Overwritten by the engine.")
    random_ltd_schedule: OrAbsent[TokenSchedule] = key(
        None, "Schedule of the number of kept tokens.", required_when="enabled"
    )
    layer_token_lr_schedule: OrAbsent[LayerTokenSchedule] = key(
        None, "Required while enabled, although it has no effect."
    )


class DataRouting(Block, since="0.8.0"):
    """Data routing: the tokens that each layer processes."""

    enabled: bool = key(False, "Stored by DeepSpeed but never used.")
    random_ltd: OrAbsent[RandomLTD] = key(None, "Random token dropping.", checks=(A_BLOCK,))


class DataEfficiency(Block, since="0.8.0"):
    """Data sampling and data routing."""

    enabled: bool = key(False, "Stored by DeepSpeed but never used.")
    seed: Integer = key(1234, "Random seed of the sampler.")
    data_sampling: OrAbsent[DataSampling] = key(
        None, "Data sampling: the order of samples.", checks=(A_BLOCK,)
    )
    data_routing: OrAbsent[DataRouting] = key(
        None, "Data routing: the tokens that each layer processes.", checks=(A_BLOCK,)
    )
