"""Command-line arguments of training scripts: the config, and a learning-rate schedule."""

import argparse


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add ``--deepspeed`` and ``--deepspeed_config`` to ``parser`` and return it."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configuration")
    group.add_argument(
        "--deepspeed",
        default=False,
        action="store_true",
        help="train with DeepSpeed (for scripts; has no effect by itself)",
    )
    group.add_argument(
        "--deepspeed_config", default=None, type=str, help="path of the ds_config file"
    )
    return parser


LR_RANGE_TEST = "LRRangeTest"
ONE_CYCLE = "OneCycle"
WARMUP_LR = "WarmupLR"
WARMUP_DECAY_LR = "WarmupDecayLR"
WARMUP_COSINE_LR = "WarmupCosineLR"

LR_RANGE_TEST_MIN_LR = "lr_range_test_min_lr"
LR_RANGE_TEST_STEP_RATE = "lr_range_test_step_rate"
LR_RANGE_TEST_STEP_SIZE = "lr_range_test_step_size"
LR_RANGE_TEST_STAIRCASE = "lr_range_test_staircase"
CYCLE_FIRST_STEP_SIZE = "cycle_first_step_size"
CYCLE_FIRST_STAIR_COUNT = "cycle_first_stair_count"
CYCLE_SECOND_STEP_SIZE = "cycle_second_step_size"
CYCLE_SECOND_STAIR_COUNT = "cycle_second_stair_count"
DECAY_STEP_SIZE = "decay_step_size"
CYCLE_MIN_LR = "cycle_min_lr"
CYCLE_MAX_LR = "cycle_max_lr"
DECAY_LR_RATE = "decay_lr_rate"
CYCLE_MIN_MOM = "cycle_min_mom"
CYCLE_MAX_MOM = "cycle_max_mom"
DECAY_MOM_RATE = "decay_mom_rate"
WARMUP_MIN_LR = "warmup_min_lr"
WARMUP_MAX_LR = "warmup_max_lr"
WARMUP_NUM_STEPS = "warmup_num_steps"
WARMUP_TYPE = "warmup_type"
WARMUP_LOG_RATE = "log"
WARMUP_LINEAR_RATE = "linear"
WARMUP_MIN_RATIO = "warmup_min_ratio"
COS_MIN_RATIO = "cos_min_ratio"
TOTAL_NUM_STEPS = "total_num_steps"

_ARGUMENTS: dict[str, object] = {
    "lr_schedule": None,
    LR_RANGE_TEST_MIN_LR: 0.001,
    LR_RANGE_TEST_STEP_RATE: 1.0,
    LR_RANGE_TEST_STEP_SIZE: 1000,
    LR_RANGE_TEST_STAIRCASE: False,
    CYCLE_FIRST_STEP_SIZE: 1000,
    CYCLE_FIRST_STAIR_COUNT: -1,
    CYCLE_SECOND_STEP_SIZE: -1,
    CYCLE_SECOND_STAIR_COUNT: -1,
    DECAY_STEP_SIZE: 1000,
    CYCLE_MIN_LR: 0.01,
    CYCLE_MAX_LR: 0.1,
    DECAY_LR_RATE: 0.0,
    "cycle_momentum": False,
    CYCLE_MIN_MOM: 0.8,
    CYCLE_MAX_MOM: 0.9,
    DECAY_MOM_RATE: 0.0,
    WARMUP_MIN_LR: 0.0,
    WARMUP_MAX_LR: 0.001,
    WARMUP_NUM_STEPS: 1000,
    WARMUP_TYPE: WARMUP_LOG_RATE,
    WARMUP_MIN_RATIO: 0.01,
    COS_MIN_RATIO: 0.01,
}
"""All arguments with DeepSpeed's defaults."""


def add_tuning_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add an argument for each setting of the schedules to ``parser`` and return it."""
    group = parser.add_argument_group("Convergence Tuning", "learning rate schedule")
    for name, default in _ARGUMENTS.items():
        if isinstance(default, bool):
            group.add_argument(f"--{name}", action="store_true")
        else:
            kind = str if default is None else type(default)
            group.add_argument(f"--{name}", type=kind, default=default)
    return parser
