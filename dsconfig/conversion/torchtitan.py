"""torchtitan's job config (TOML), as of its release 0.2.2 (``torchtitan/config/job_config.py``)."""

from collections.abc import Collection, Iterator
from typing import Any

from dsconfig.conversion.fsdp2 import torch_optimizer
from dsconfig.conversion.unconverted import (
    comment_lines,
    offload_patterns,
    tensor_degree,
    unconverted,
)
from dsconfig.facts.naming import named
from dsconfig.report import writers
from dsconfig.runtimes.effective import Effective, Precision, Tier
from dsconfig.schema.paths import STAGE

RELEASE = "0.2.2"
CONVERTED: tuple[str, ...] = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "bf16.enabled",
    "bf16.bf16_master_weights_and_grads",
    STAGE.dotted,
    "zero_optimization.mics_shard_size",
    "tensor_parallel.autotp_size",
)
ADAM_ARGUMENTS = ("lr", "betas", "eps", "weight_decay")
LEAST = {"WarmupDecayLR": 0.0, "WarmupCosineLR": 0.0001}
"""Default of the final rate, relative to the peak."""
DECAY = {"WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
Sections = dict[str, dict[str, Any]]


def toml_text(effective: Effective, unread: Collection[str] = ()) -> str:
    """Return the sections that follow from the config, with what cannot be converted as comments.

    Raises ValueError for fp16, which torchtitan does not train in, and for an open batch.
    """
    if effective.numerics.precision is Precision.FP16:
        raise ValueError("torchtitan does not train in fp16: use bf16")
    if effective.batch is None:
        raise ValueError(f"the batch is not determined: specify {named('gpus')} and the batch size")
    converted: list[str] = [*CONVERTED, *offload_patterns(effective)]
    sections = {**_training(effective), **_parallelism(effective)}
    for added, names in (_optimizer(effective), _schedule(effective)):
        for section, values in added.items():
            sections.setdefault(section, {}).update(values)
        converted += names
    lines = [f"# torchtitan {RELEASE}: model, data and checkpoints are not part of a ds_config"]
    lines += [f"# Different from the config: {each}" for each in _differences(effective)]
    listed = list(comment_lines(unconverted(effective, converted, unread)))
    return "\n".join([*lines, "", writers.toml(sections), *listed]).rstrip() + "\n"


def _differences(effective: Effective) -> Iterator[str]:
    """Yield what torchtitan does differently although the config is converted."""
    reduced, scheduler = effective.numerics.communication_dtype, effective.scheduler
    if reduced is not Precision.FP32:
        yield f"gradients are reduced in fp32, not {reduced}"
    if scheduler is None or scheduler.type not in ("WarmupLR", *DECAY):
        return
    if scheduler.params.get("warmup_type", "log") != "linear":
        yield "the learning rate warms up linearly, not logarithmically"


def _training(effective: Effective) -> Sections:
    batch, numerics, zero = effective.batch, effective.numerics, effective.zero
    assert batch is not None
    half = numerics.precision is Precision.BF16
    training = {
        "local_batch_size": batch.micro_batch,
        "global_batch_size": batch.global_batch,
        # torchtitan always clips; an infinite norm leaves gradients unchanged.
        "max_norm": effective.gradients.clipping or 1e30,
        "enable_cpu_offload": {zero.optimizer_tier, zero.parameter_tier} != {Tier.DEVICE},
        "dtype": "bfloat16" if numerics.master_dtype is Precision.BF16 else "float32",
        "mixed_precision_param": "bfloat16" if half else "float32",
        "mixed_precision_reduce": "float32",
    }
    mode = "full" if effective.activation_checkpointing.enabled else "none"
    return {"training": training, "activation_checkpoint": {"mode": mode}}


def _parallelism(effective: Effective) -> Sections:
    batch, zero = effective.batch, effective.zero
    assert batch is not None
    ranks = batch.data_parallel
    group = zero.mics_shard_size if zero.mics_shard_size > 0 else ranks
    shard = 1 if zero.stage == 0 else group
    block = {
        "data_parallel_replicate_degree": ranks // shard,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "always" if zero.stage == 3 else "never",
        "tensor_parallel_degree": tensor_degree(effective),
    }
    return {"parallelism": block}


def _optimizer(effective: Effective) -> tuple[Sections, list[str]]:
    """Return the optimizer's section and the keys it represents."""
    named = effective.optimizer
    chosen = None if named is None else torch_optimizer(named.type, named.params)
    if chosen is None or chosen[0] not in ("Adam", "AdamW"):
        return {}, []
    name, options = chosen
    # torch's defaults, where torchtitan has its own.
    values: dict[str, Any] = {"name": name, "lr": 1e-3, "beta1": 0.9, "beta2": 0.999}
    values["weight_decay"] = 0.01 if name == "AdamW" else 0.0
    for key, value in options.items():
        if key == "betas":
            values |= dict(zip(("beta1", "beta2"), map(float, value), strict=True))
        elif key in ADAM_ARGUMENTS:
            values[key] = float(value)
    names = ["optimizer.type", "optimizer.params.torch_adam", "optimizer.params.adam_w_mode"]
    return {"optimizer": values}, names + [f"optimizer.params.{key}" for key in ADAM_ARGUMENTS]


def _schedule(effective: Effective) -> tuple[Sections, list[str]]:
    """Return the sections of the schedule and the keys they represent."""
    named = effective.scheduler
    if named is None:
        return {"lr_scheduler": {"warmup_steps": 0, "min_lr_factor": 1.0}}, []
    if named.type != "WarmupLR" and named.type not in DECAY:
        return {}, []
    params = named.params
    warmup = int(params.get("warmup_num_steps", 1000))
    section: dict[str, Any] = {"warmup_steps": warmup}
    names = ["scheduler.type", "scheduler.params.warmup_num_steps"]
    added: Sections = {"lr_scheduler": section}
    total = params.get("total_num_steps")
    if named.type in DECAY and isinstance(total, int) and total > warmup:
        section |= {
            "decay_ratio": (total - warmup) / total,
            "decay_type": DECAY[named.type],
            "min_lr_factor": float(params.get("cos_min_ratio", LEAST[named.type])),
        }
        added["training"] = {"steps": total}
        names += ["scheduler.params.total_num_steps", "scheduler.params.cos_min_ratio"]
    else:
        section["min_lr_factor"] = 1.0
    peak = params.get("warmup_max_lr")
    if isinstance(peak, int | float):
        added["optimizer"] = {"lr": float(peak)}
        names.append("scheduler.params.warmup_max_lr")
    if params.get("warmup_type") == "linear":
        names.append("scheduler.params.warmup_type")
    return added, names
