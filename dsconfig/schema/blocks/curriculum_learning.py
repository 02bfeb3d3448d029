"""Old curriculum."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, OrAbsent


class ScheduleConfig(Block, since="0.5.0", until="0.19.7"):
    """Setting of the old curriculum block."""

    total_curriculum_step: OrAbsent[Integer] = key(
        None,
        "Setting of the old curriculum block.",
        replaced_by="data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*.schedule_config.total_curriculum_step",
    )
    difficulty_step: OrAbsent[Integer] = key(
        None,
        "Setting of the old curriculum block.",
        replaced_by="data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*.schedule_config.difficulty_step",
    )
    root_degree: OrAbsent[Integer] = key(
        None,
        "Setting of the old curriculum block.",
        replaced_by="data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*.schedule_config.root_degree",
    )
    difficulty: OrAbsent[list[Integer]] = key(
        None,
        "Setting of the old curriculum block.",
        replaced_by="data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*.schedule_config.difficulty",
    )
    max_step: OrAbsent[list[Integer]] = key(
        None,
        "Setting of the old curriculum block.",
        replaced_by="data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*.schedule_config.max_step",
    )


class CurriculumLearning(Block, since="0.5.0", until="0.19.7"):
    """Old top-level curriculum learning."""

    enabled: bool = key(
        False,
        "Setting of the old curriculum block.",
        replaced_by="data_efficiency.data_sampling.curriculum_learning",
    )
    curriculum_type: OrAbsent[str] = key(
        None,
        "Setting of the old curriculum block.",
        replaced_by="data_efficiency.data_sampling.curriculum_learning",
    )
    min_difficulty: OrAbsent[Integer] = key(
        None,
        "Setting of the old curriculum block.",
        replaced_by="data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*.min_difficulty",
    )
    max_difficulty: OrAbsent[Integer] = key(
        None,
        "Setting of the old curriculum block.",
        replaced_by="data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*.max_difficulty",
    )
    schedule_type: OrAbsent[str] = key(
        None,
        "Setting of the old curriculum block.",
        replaced_by="data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*.schedule_type",
    )
    schedule_config: OrAbsent[ScheduleConfig] = key(
        None,
        "Setting of the old curriculum block.",
        replaced_by="data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*.schedule_config",
    )
