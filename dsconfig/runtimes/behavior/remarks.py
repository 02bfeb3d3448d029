"""Behavior that surprises users but raises no error."""

from typing import TYPE_CHECKING

from dsconfig.batch import STEPS
from dsconfig.facts import Facts
from dsconfig.runtimes.behavior.integrations import value
from dsconfig.runtimes.behavior.replay import Replay
from dsconfig.schema.schedules import TOTAL

if TYPE_CHECKING:
    from dsconfig.runtimes.behavior.trainer import Arguments


def after_accelerate(replay: Replay, facts: Facts) -> None:
    """Report divided steps, disabled precision and overridden accumulation."""
    training, config = facts.training, replay.config
    processes = facts.world_size or 1
    if TOTAL in replay.reasons and processes > 1 and training and training.total_steps:
        written = value(config, TOTAL)
        replay.remark(
            "DSC752",
            TOTAL,
            f"accelerate divides the {training.total_steps} steps by {processes} processes and "
            f"schedules {written}, but does not divide the warmup steps",
            "write total_num_steps in the config, in optimizer steps",
        )
    precision = training.precision if training else None
    if precision in ("fp16", "bf16") and value(config, f"{precision}.enabled") is False:
        replay.remark(
            "DSC753",
            f"{precision}.enabled",
            f"mixed_precision is {precision}, but the config has {precision}.enabled false, which "
            "takes precedence: training runs in fp32",
            f'set {precision}.enabled to true or "auto"',
        )
    if training and training.gradient_accumulation_steps is not None:
        _accumulation(replay, training.gradient_accumulation_steps)


def after_trainer(replay: Replay, args: "Arguments") -> None:
    """Report flags that the config does not carry, and default clipping."""
    config = replay.config
    for dtype in ("fp16", "bf16"):
        path = f"{dtype}.enabled"
        if args[dtype] and path in replay.reasons and replay.reasons[path].block_was_absent:
            replay.remark(
                "DSC754",
                path,
                f"the config has no {dtype} block: accelerate adds it after the Trainer has "
                f"recorded fp32, so fp32 inputs reach a {dtype} model",
                f'write "{dtype}": {{"enabled": "auto"}}',
            )
    if "gradient_clipping" not in config and args["max_grad_norm"] != 1.0:
        replay.remark(
            "DSC755",
            "gradient_clipping",
            f"max_grad_norm is {args['max_grad_norm']}, but the config has no gradient_clipping: "
            "DeepSpeed clips at its default of 1.0",
            'write "gradient_clipping": "auto"',
        )
    _accumulation(replay, args["gradient_accumulation_steps"])


def _accumulation(replay: Replay, given: int) -> None:
    written = value(replay.config, STEPS)
    if written != given:
        replay.remark(
            "DSC756",
            STEPS,
            f"the run specifies {given} accumulation steps, but DeepSpeed receives {written}",
            'write "gradient_accumulation_steps": "auto"',
        )
