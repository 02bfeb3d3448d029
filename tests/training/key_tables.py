"""Arguments of optimizers and schedules, each with a value that has an effect."""

from typing import Any

OPTIMIZER_ARGUMENTS: dict[str, list[tuple[str, Any]]] = {
    "AdamW": [
        ("lr", 0.1),
        ("betas", [0.5, 0.6]),
        ("eps", 0.5),
        ("weight_decay", 0.5),
        ("amsgrad", True),
        ("maximize", True),
        ("foreach", True),
        ("fused", True),
        ("capturable", True),
        ("differentiable", True),
        ("torch_adam", True),
        ("bias_correction", False),
    ],
    "Adam": [("adam_w_mode", False), ("lr", 0.1), ("bias_correction", False)],
    "Adagrad": [("lr_decay", 0.9), ("initial_accumulator_value", 2.0), ("eps", 0.5)],
    "SGD": [("momentum", 0.9), ("dampening", 0.5), ("nesterov", True), ("maximize", True)],
    "ASGD": [("lambd", 0.5), ("alpha", 5.0), ("t0", 0)],
    "Adadelta": [("rho", 0.1)],
    "Adafactor": [("beta2_decay", -0.1), ("d", 100.0), ("eps", [50.0, 50.0])],
    "NAdam": [("momentum_decay", 5.0), ("decoupled_weight_decay", True)],
    "RMSprop": [("alpha", 0.1), ("centered", True), ("momentum", 0.9)],
    "Rprop": [("etas", [0.1, 9.0]), ("step_sizes", [0.1, 0.2])],
    "Lamb": [("max_coeff", 0.02), ("min_coeff", 9.0), ("eps_inside_sqrt", True)],
    "Lion": [("lr", 0.1), ("betas", [0.1, 0.2]), ("weight_decay", 0.5)],
    "Muon": [
        ("muon_lr", 0.5),
        ("adam_lr", 0.5),
        ("momentum", 0.1),
        ("betas", [0.1, 0.2]),
        ("eps", 1.0),
        ("weight_decay", 0.9),
        ("adam_w_mode", False),
        ("nesterov", False),
    ],
}
REQUIRES: dict[tuple[str, str], dict[str, Any]] = {
    ("SGD", "dampening"): {"momentum": 0.9},
    ("SGD", "nesterov"): {"momentum": 0.9},
    ("NAdam", "decoupled_weight_decay"): {"weight_decay": 0.5},
    ("Adam", "adam_w_mode"): {"weight_decay": 0.5},
    ("Muon", "adam_w_mode"): {"weight_decay": 0.5},
    ("Lamb", "eps_inside_sqrt"): {"eps": 0.5},
    ("ASGD", "alpha"): {"t0": 0, "lambd": 0.5},
    ("ASGD", "t0"): {"lambd": 0.5},
}
"""Other arguments that an argument needs to have an effect."""
IMPLEMENTATIONS = ("foreach", "fused", "capturable", "differentiable")
"""They select an implementation and do not change results."""

SCHEDULES: dict[str, tuple[dict[str, Any], list[tuple[str, Any]]]] = {
    "WarmupLR": (
        {"warmup_num_steps": 8, "warmup_max_lr": 0.1},
        [
            ("warmup_min_lr", 0.05),
            ("warmup_max_lr", 0.2),
            ("warmup_num_steps", 4),
            ("warmup_type", "linear"),
            ("last_batch_iteration", 3),
        ],
    ),
    "WarmupDecayLR": (
        {"warmup_num_steps": 4, "warmup_max_lr": 0.1, "total_num_steps": 12},
        [("total_num_steps", 20)],
    ),
    "WarmupCosineLR": (
        {"warmup_num_steps": 4, "total_num_steps": 12},
        [("warmup_min_ratio", 0.5), ("cos_min_ratio", 0.5)],
    ),
    "LRRangeTest": (
        {"lr_range_test_min_lr": 0.01, "lr_range_test_step_size": 4},
        [
            ("lr_range_test_min_lr", 0.02),
            ("lr_range_test_step_size", 2),
            ("lr_range_test_step_rate", 3.0),
            ("lr_range_test_staircase", True),
        ],
    ),
    "OneCycle": (
        {
            "cycle_min_lr": 0.01,
            "cycle_max_lr": 0.1,
            "cycle_first_step_size": 4,
            "decay_lr_rate": 0.1,
            "decay_mom_rate": 0.1,
            "decay_step_size": 2,
        },
        [
            ("cycle_min_lr", 0.02),
            ("cycle_max_lr", 0.2),
            ("decay_lr_rate", 0.5),
            ("cycle_first_step_size", 6),
            ("cycle_second_step_size", 2),
            ("cycle_first_stair_count", 2),
            ("cycle_second_stair_count", 2),
            ("decay_step_size", 3),
            ("cycle_momentum", False),
            ("cycle_min_mom", 0.5),
            ("cycle_max_mom", 0.99),
            ("decay_mom_rate", 0.5),
        ],
    ),
    "ConstantLR": ({}, [("factor", 0.9), ("total_iters", 2), ("last_epoch", 2)]),
    "LinearLR": ({}, [("start_factor", 0.9), ("end_factor", 0.5)]),
    "PolynomialLR": ({}, [("power", 3.0), ("total_iters", 9)]),
    "StepLR": ({"step_size": 4}, [("step_size", 2), ("gamma", 0.7)]),
    "MultiStepLR": ({"milestones": [3]}, [("milestones", [2, 5])]),
    "CosineAnnealingLR": ({"T_max": 9}, [("T_max", 5), ("eta_min", 0.1)]),
    "CosineAnnealingWarmRestarts": ({"T_0": 4}, [("T_0", 3), ("T_mult", 2), ("eta_min", 0.1)]),
    "CyclicLR": (
        {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3},
        [
            ("base_lr", 0.02),
            ("max_lr", 0.2),
            ("step_size_up", 2),
            ("step_size_down", 5),
            ("mode", "triangular2"),
            ("scale_fn", lambda _: 0.5),
            ("scale_mode", "iterations"),
            ("base_momentum", 0.5),
            ("max_momentum", 0.99),
            ("cycle_momentum", False),
        ],
    ),
    "LambdaLR": (
        {"lr_lambda": lambda step: 1.0},
        [("lr_lambda", lambda step: 0.5**step)],
    ),
    "OneCycleLR": (
        {"max_lr": 0.1, "total_steps": 20},
        [
            ("max_lr", 0.2),
            ("total_steps", 30),
            ("pct_start", 0.6),
            ("anneal_strategy", "linear"),
            ("div_factor", 5.0),
            ("final_div_factor", 10.0),
            ("three_phase", True),
            ("base_momentum", 0.5),
            ("max_momentum", 0.99),
        ],
    ),
    "ReduceLROnPlateau": (
        {"patience": 2},
        [
            ("mode", "max"),
            ("factor", 0.5),
            ("patience", 0),
            ("threshold", 0.5),
            ("threshold_mode", "abs"),
            ("cooldown", 3),
            ("min_lr", 0.2),
            ("eps", 10.0),
        ],
    ),
}
REQUIRES_SCHEDULE = {
    ("CyclicLR", "scale_mode"): {
        "scale_fn": lambda x: 0.9**x,
        "scale_mode": "cycle",
    },
    ("ReduceLROnPlateau", "threshold_mode"): {"threshold": 0.6},
    ("OneCycleLR", "epochs"): {"total_steps": None, "epochs": 5, "steps_per_epoch": 4},
    ("OneCycleLR", "steps_per_epoch"): {"total_steps": None, "epochs": 5, "steps_per_epoch": 4},
}
"""Arguments that are set both with and without the tested one."""
