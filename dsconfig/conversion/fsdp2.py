"""A Python module that trains with PyTorch's FSDP2 (``fully_shard``) as the config does."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from dsconfig.conversion.unconverted import comment_lines, offload_patterns, unconverted
from dsconfig.facts.naming import named
from dsconfig.report import writers
from dsconfig.runtimes.effective import Effective, Tier
from dsconfig.schema.optimizers import TORCH, optimizer_type
from dsconfig.schema.paths import STAGE

BODY = Path(__file__).with_name("fsdp2_body.txt")
"""The part of the module that does not depend on the config."""
SCHEDULES = ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
SELECTORS = ("torch_adam", "adam_w_mode", "bias_correction", "set_grad_none")
"""Parameters of DeepSpeed's Adam that select an implementation."""
CONVERTED: tuple[str, ...] = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "bf16.enabled",
    "bf16.bf16_master_weights_and_grads",
    "fp16.enabled",
    "fp16.fp16_master_weights_and_grads",
    "fp16.loss_scale",
    "fp16.initial_scale_power",
    "fp16.loss_scale_window",
    "fp16.hysteresis",
    "fp16.consecutive_hysteresis",
    "fp16.min_loss_scale",
    "communication_data_type",
    STAGE.dotted,
)


def module(effective: Effective, name: str, unread: Collection[str] = ()) -> str:
    """Return the text of the module for a config file called ``name``.

    Settings are constants at the top; what cannot be converted is listed below them. Raises
    ValueError if the batch is not determined or a value cannot be written.
    """
    batch = effective.batch
    if batch is None:
        raise ValueError(f"the batch is not determined: specify {named('gpus')} and the batch size")
    constants, converted = _constants(effective)
    constants = {
        "RANKS": batch.data_parallel,
        "MICRO_BATCH": batch.micro_batch,
        "ACCUMULATION": batch.accumulation,
        **constants,
    }
    listed = comment_lines(unconverted(effective, converted, unread))
    settings = [
        *(f"{key} = {writers.python(value)}" for key, value in constants.items()),
        *listed,
    ]
    head, body = BODY.read_text("utf-8").split("# settings\n")
    return head.replace("FILE", writers.docstring(name)) + "\n".join(settings) + "\n" + body


def _constants(effective: Effective) -> tuple[dict[str, Any], list[str]]:
    """Return the constants of the module, and the patterns of the keys that they represent."""
    zero, numerics = effective.zero, effective.numerics
    converted: list[str] = [*CONVERTED, *offload_patterns(effective)]
    scale = numerics.loss_scale
    optimizer, scheduler = effective.optimizer, effective.scheduler
    chosen = None if optimizer is None else torch_optimizer(optimizer.type, optimizer.params)
    if chosen is not None:
        converted += ["optimizer.type", *(f"optimizer.params.{name}" for name in chosen[1])]
        converted += [f"optimizer.params.{name}" for name in SELECTORS]
    if scheduler is not None and scheduler.type in SCHEDULES:
        converted += ["scheduler.type", "scheduler.params.*"]
    else:
        scheduler = None
    constants: dict[str, Any] = {
        "CLIPPING": effective.gradients.clipping,
        "PRECISION": str(numerics.precision),
        "REDUCE_DTYPE": str(numerics.communication_dtype),
        "MASTER_DTYPE": str(numerics.master_dtype),
        "LOSS_SCALE": None
        if scale is None
        else {
            "static": scale.static,
            "initial": 2.0**scale.initial_power,
            "window": scale.window,
            "hysteresis": scale.hysteresis,
            "consecutive": scale.consecutive_hysteresis,
            "minimum": scale.minimum,
        },
        "STAGE": zero.stage,
        "OFFLOAD": {zero.optimizer_tier, zero.parameter_tier} != {Tier.DEVICE},
        "OPTIMIZER": chosen,
        "SCHEDULE": None if scheduler is None else (scheduler.type, dict(scheduler.params)),
    }
    return constants, converted


def torch_optimizer(name: str, params: Any) -> tuple[str, dict[str, Any]] | None:
    """Return torch's class and its arguments; None if torch has no such optimizer."""
    known = optimizer_type(name)
    built = None if known is None else known.class_in_engine(params)
    if built is None or not built.startswith(TORCH) or params.get("bias_correction") is False:
        return None
    options = {key: value for key, value in params.items() if key not in SELECTORS}
    if built == f"{TORCH}AdamW" and not params.get("torch_adam", False):
        options.setdefault("weight_decay", 0.0)
    return built.removeprefix(TORCH), options
