"""Data sampling (curriculum, dynamic batches) and data routing (token dropping)."""

from typing import Any, Literal

from dsconfig.schema.declare import REQUIRED, Block, key
from dsconfig.schema.types import Integer, Number, OrAbsent
from dsconfig.schema.value_checks import A_BLOCK, AS_INTEGER


class ScheduleConfig(Block, since="0.8.0"):
    """How the difficulty of one metric grows."""

    total_curriculum_step: OrAbsent[Integer] = key(
        None, "Steps from easiest to hardest; linear and root schedules.", unit="steps"
    )
    difficulty_step: OrAbsent[Integer] = key(
        None, "Granularity; a value that is no multiple of 8 warns."
    )
    root_degree: OrAbsent[Number] = key(None, "Degree of the root schedule.")
    difficulty: OrAbsent[list[Integer]] = key(
        None, "Difficulties of the discrete schedule; one more than max_step has."
    )
    max_step: OrAbsent[list[Integer]] = key(
        None, "Last step of each difficulty of the discrete schedule.", unit="steps"
    )


class CurriculumMetric(Block, since="0.8.0"):
    """One measure of difficulty."""

    index_to_sample_path: OrAbsent[str] = key(None, "File that maps a difficulty to samples.")
    index_to_metric_path: OrAbsent[str] = key(None, "File that maps a difficulty to its value.")
    clustering_type: OrAbsent[Literal["single_cluster", "schedule_based"]] = key(
        None, "One cluster, or clusters along the schedule."
    )
    difficulty_type: OrAbsent[Literal["value", "percentile"]] = key(
        None, "Whether difficulty is the value or its percentile."
    )
    min_difficulty: Integer = key(REQUIRED, "Difficulty at the start.")
    max_difficulty: Integer = key(REQUIRED, "Difficulty at the end.")
    schedule_type: Literal["fixed_discrete", "fixed_linear", "fixed_root", "custom"] = key(
        REQUIRED, "Shape of the growth."
    )
    schedule_config: OrAbsent[ScheduleConfig] = key(None, "Arguments of the growth.")


class CurriculumLearning(Block, since="0.8.0"):
    """Easy samples first; acts by its own switch, whatever its parents say."""

    enabled: bool = key(False, "Turns the curriculum on.")
    data_cluster_path: OrAbsent[str] = key(
        None, "Directory for clusters of difficulty; needed unless there is a single one."
    )
    curriculum_metrics: OrAbsent[dict[str, CurriculumMetric]] = key(
        None,
        "Measures of difficulty by name.",
        checked="0.8.0",
        required_when="enabled",
    )


class DynamicBatching(Block, since="0.16.5"):
    """Batches of varying size, the learning rate scaled to match."""

    enabled: bool = key(False, "Turns dynamic batches on.")
    metrics_path: OrAbsent[str] = key(None, "Directory with measured sequence lengths.")
    lr_scaling_method: Literal["linear", "sqrt", "none"] = key(
        "linear", "How the learning rate follows the batch size."
    )
    min_batch_size: Integer = key(1, "Smallest batch.", checks=(AS_INTEGER,))
    max_batch_size: Integer | None = key(
        None, "Largest batch; null is no limit.", checks=(AS_INTEGER,)
    )
    sequence_picking_order: Literal["random", "seqlen", "dataloader"] = key(
        "dataloader", "Order in which sequences are packed."
    )
    max_tokens: OrAbsent[Integer] = key(
        None, "Token budget of a batch; needed while enabled.", unit="tokens"
    )
    verbose: bool = key(False, "Prints the batches.")


class DataSampling(Block, since="0.8.0"):
    """Which samples come when."""

    enabled: bool = key(False, "Stored and not looked at.")
    num_epochs: Integer = key(1000, "Most passes over the data.")
    num_workers: Integer = key(0, "Processes that load data.")
    pin_memory: bool = key(False, "Loads into page-locked memory.", since="0.16.5")
    curriculum_learning: OrAbsent[CurriculumLearning] = key(
        None, "Easy samples first.", checks=(A_BLOCK,)
    )
    dynamic_batching: OrAbsent[DynamicBatching] = key(
        None, "Batches of varying size.", since="0.16.5", checks=(A_BLOCK,)
    )


class TokenScheduleConfig(Block, since="0.8.0"):
    """How fast the kept length grows."""

    require_steps: Integer = key(REQUIRED, "Steps until every token is kept.", unit="steps")
    seq_per_step: Integer = key(REQUIRED, "Granularity of the kept length.")


class TokenSchedule(Block, since="0.8.0"):
    """How many tokens are kept."""

    min_value: Integer = key(REQUIRED, "Tokens kept at the start.")
    max_value: Integer = key(REQUIRED, "Tokens kept at the end.")
    schedule_type: Literal["fixed_linear"] = key(REQUIRED, "Shape of the growth.")
    schedule_config: TokenScheduleConfig = key(REQUIRED, "Arguments of the growth.")


class LayerTokenSchedule(Block, since="0.8.0"):
    """A learning rate that follows tokens per layer; declared and never built."""

    enabled: bool = key(False, "True raises NotImplementedError.")
    total_layer_tokens: Any = key(None, "Named by DeepSpeed, read by nothing.")
    warmup_type: Any = key(None, "Named by DeepSpeed, read by nothing.")
    warmup_layer_tokens: Any = key(None, "Named by DeepSpeed, read by nothing.")


class RandomLTD(Block, since="0.8.0"):
    """Random token dropping per layer; acts by its own switch, whatever its parents say."""

    enabled: bool = key(False, "Turns token dropping on.")
    total_layer_num: OrAbsent[Integer] = key(None, "Layers of the model.", required_when="enabled")
    random_ltd_layer_num: OrAbsent[Integer] = key(
        None, "Layers that drop tokens.", required_when="enabled"
    )
    random_ltd_layer_id: OrAbsent[list[Integer]] = key(
        None, "Indices of those layers, as many as random_ltd_layer_num."
    )
    model_mask_name: OrAbsent[str] = key(None, "Name of the attention-mask argument.")
    model_type: OrAbsent[Literal["decoder", "encoder"]] = key(None, "ReadAs of the model.")
    hidden_state_order: OrAbsent[str] = key(None, "Order of the axes of hidden states.")
    micro_batch_size: OrAbsent[Integer] = key(None, "Overwritten by the engine.")
    global_batch_size: OrAbsent[Integer] = key(None, "Overwritten by the engine.")
    random_ltd_schedule: OrAbsent[TokenSchedule] = key(
        None, "How many tokens are kept.", required_when="enabled"
    )
    layer_token_lr_schedule: OrAbsent[LayerTokenSchedule] = key(
        None, "Needed while enabled, although it does nothing."
    )


class DataRouting(Block, since="0.8.0"):
    """Which tokens pass which layers."""

    enabled: bool = key(False, "Stored and not looked at.")
    random_ltd: OrAbsent[RandomLTD] = key(None, "Random token dropping.", checks=(A_BLOCK,))


class DataEfficiency(Block, since="0.8.0"):
    """Data sampling and data routing."""

    enabled: bool = key(False, "Stored and not looked at.")
    seed: Integer = key(1234, "Seed of the sampler.")
    data_sampling: OrAbsent[DataSampling] = key(None, "Which samples come when.", checks=(A_BLOCK,))
    data_routing: OrAbsent[DataRouting] = key(
        None, "Which tokens pass which layers.", checks=(A_BLOCK,)
    )
