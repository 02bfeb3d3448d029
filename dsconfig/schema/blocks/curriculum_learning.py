"""Curriculum learning in its first form, at the top level of the file."""

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, OrAbsent

NEW = "data_efficiency.data_sampling.curriculum_learning"
METRIC = f"{NEW}.curriculum_metrics.*"
SCHEDULE = f"{METRIC}.schedule_config"


class ScheduleConfig(Block, since="0.5.0", until="0.19.7"):
    """How difficulty grows."""

    total_curriculum_step: OrAbsent[Integer] = key(
        None, "Steps from easiest to hardest.", replaced_by=f"{SCHEDULE}.total_curriculum_step"
    )
    difficulty_step: OrAbsent[Integer] = key(
        None, "Granularity of the difficulty.", replaced_by=f"{SCHEDULE}.difficulty_step"
    )
    root_degree: OrAbsent[Integer] = key(
        None, "Degree of the root schedule.", replaced_by=f"{SCHEDULE}.root_degree"
    )
    difficulty: OrAbsent[list[Integer]] = key(
        None, "Difficulties of the discrete schedule.", replaced_by=f"{SCHEDULE}.difficulty"
    )
    max_step: OrAbsent[list[Integer]] = key(
        None, "Last step of each difficulty.", replaced_by=f"{SCHEDULE}.max_step"
    )


class CurriculumLearning(Block, since="0.5.0", until="0.19.7"):
    """Easy samples first."""

    enabled: bool = key(False, "Turned the curriculum on.", replaced_by=NEW)
    curriculum_type: OrAbsent[str] = key(
        None, "What difficulty means; sequence length in practice.", replaced_by=NEW
    )
    min_difficulty: OrAbsent[Integer] = key(
        None, "Difficulty at the start.", replaced_by=f"{METRIC}.min_difficulty"
    )
    max_difficulty: OrAbsent[Integer] = key(
        None, "Difficulty at the end.", replaced_by=f"{METRIC}.max_difficulty"
    )
    schedule_type: OrAbsent[str] = key(
        None, "Shape of the growth.", replaced_by=f"{METRIC}.schedule_type"
    )
    schedule_config: OrAbsent[ScheduleConfig] = key(
        None, "Arguments of the growth.", replaced_by=SCHEDULE
    )
