"""Which class DeepSpeed builds for a scheduler block, and what its constructor takes."""

from collections.abc import Mapping
from typing import NamedTuple


class Schedule(NamedTuple):
    """Arguments of a constructor; ``required`` have no default."""

    arguments: frozenset[str]
    required: tuple[str, ...] = ()
    from_torch: bool = False


_WARMUP = "warmup_min_lr warmup_max_lr warmup_num_steps warmup_type last_batch_iteration"
_COSINE = "warmup_min_ratio warmup_num_steps cos_min_ratio warmup_type last_batch_iteration"
_ONE_CYCLE = (
    "decay_lr_rate cycle_first_step_size cycle_second_step_size cycle_first_stair_count "
    "cycle_second_stair_count decay_step_size cycle_momentum cycle_min_mom cycle_max_mom "
    "decay_mom_rate last_batch_iteration"
)
_RANGE = "min_lr step_size step_rate staircase"


def _schedule(optional: str, required: str = "", *, from_torch: bool = False) -> Schedule:
    needed = tuple(required.split())
    return Schedule(frozenset((*optional.split(), *needed)), needed, from_torch)


OWN: Mapping[str, Schedule] = {
    "WarmupLR": _schedule(_WARMUP),
    "WarmupDecayLR": _schedule(_WARMUP, "total_num_steps"),
    "WarmupCosineLR": _schedule(_COSINE, "total_num_steps"),
    "OneCycle": _schedule(_ONE_CYCLE, "cycle_min_lr cycle_max_lr"),
    "LRRangeTest": _schedule(
        " ".join(f"lr_range_test_{name}" for name in _RANGE.split()) + " last_batch_iteration"
    ),
}
"""DeepSpeed's schedules, by exact name."""

TORCH: Mapping[str, Schedule] = {
    name: _schedule(f"{optional} last_epoch", required, from_torch=True)
    for name, (optional, required) in {
        "ChainedScheduler": ("", "schedulers"),
        "ConstantLR": ("factor total_iters", ""),
        "CosineAnnealingLR": ("eta_min", "T_max"),
        "CosineAnnealingWarmRestarts": ("T_mult eta_min", "T_0"),
        "CyclicLR": (
            "step_size_up step_size_down mode gamma scale_fn scale_mode cycle_momentum "
            "base_momentum max_momentum",
            "base_lr max_lr",
        ),
        "ExponentialLR": ("", "gamma"),
        "LambdaLR": ("", "lr_lambda"),
        "LinearLR": ("start_factor end_factor total_iters", ""),
        "MultiStepLR": ("gamma", "milestones"),
        "MultiplicativeLR": ("", "lr_lambda"),
        "OneCycleLR": (
            "total_steps epochs steps_per_epoch pct_start anneal_strategy cycle_momentum "
            "base_momentum max_momentum div_factor final_div_factor three_phase",
            "max_lr",
        ),
        "PolynomialLR": ("total_iters power", ""),
        "ReduceLROnPlateau": (
            "mode factor patience threshold threshold_mode cooldown min_lr eps",
            "",
        ),
        "SequentialLR": ("", "schedulers milestones"),
        "StepLR": ("gamma", "step_size"),
    }.items()
}
"""torch 2.13's schedules, by exact name."""


def schedule(name: str) -> Schedule | None:
    """The schedule behind a ``type``, None for an unknown name."""
    return OWN.get(name) or TORCH.get(name)
