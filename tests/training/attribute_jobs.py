"""Jobs for the attributes that DeepSpeed's engine has."""

from enum import Enum
from typing import Any

import torch

import dsengine
from dsengine.loop.deepspeed_attributes import GETTERS
from training import models
from training.live_jobs import real_deepspeed

QUERIES = (
    "bfloat16_enabled",
    "fp16_enabled",
    "get_data_types",
    "get_lr",
    "get_mom",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "is_first_weights_partition_group",
    "memory_breakdown",
    "steps_per_print",
    "torch_autocast_enabled",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "wall_clock_breakdown",
    "zero_gather_16bit_weights_on_model_save",
    "zero_optimization",
    "zero_optimization_partition_gradients",
    "zero_optimization_partition_weights",
    "zero_optimization_stage",
)
"""Methods without arguments that the engine needs itself, or that are not in the config."""
PLAIN = (
    "communication_data_type",
    "dist_backend",
    "gate_modules",
    "gradient_average",
    "has_moe_layers",
    "inside_no_sync_ctxt",
    "is_compiled",
    "mesh_device",
    "moe_layers",
    "mpu",
    "num_experts",
    "pipeline_parallelism",
    "seq_dp_world_size",
    "sequence_parallel_size",
    "use_ds_comm",
)


class Named(torch.nn.Module):
    """A model with an attribute that DeepSpeed's engine has too."""

    losses = "of the model"

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)


def messages(settings: dict[str, Any], names: list[str]) -> dict[str, str]:
    """Return the error message for each attribute that an engine does not have."""
    engine, *_ = dsengine.initialize(model=models.tied(), config=settings)
    found: dict[str, str] = {}
    for name in names:
        try:
            getattr(engine, name)
        except AttributeError as error:
            found[name] = str(error)
    has = {name for name in found if hasattr(engine, name)}
    engine.destroy()
    assert has == set()
    return found


def set_and_read(settings: dict[str, Any]) -> dict[str, Any]:
    """Return what setting refused attributes raises, and attributes of the model."""
    engine, *_ = dsengine.initialize(model=Named(), config=settings)
    refused = ""
    try:
        setattr(engine, "enable_backward_allreduce", False)  # noqa: B010
    except AttributeError as error:
        refused = str(error)
    names = engine.param_names
    result = {
        "refused": refused,
        "of_model": (engine.losses, engine.linear is engine.module.linear),
        "absent": [name for name in ("monitor", "no_such_name") if hasattr(engine, name)],
        "names": [names[parameter] for parameter in engine.module.parameters()],
    }
    engine.destroy()
    return result


def _result(getter: Any) -> Any:
    """Return a getter's value; DeepSpeed's own fail for blocks that are not in the config."""
    try:
        return _plain(getter())
    except (AttributeError, TypeError) as error:
        return error


def values(settings: dict[str, Any], real: bool) -> dict[str, Any]:
    """Return each getter's value, as plain data."""
    if real:
        model = models.tied()
        engine, *_ = real_deepspeed().initialize(
            model=model, model_parameters=model.parameters(), config=settings
        )
    else:
        engine, *_ = dsengine.initialize(model=models.tied(), config=settings)
    found = {name: _result(getattr(engine, name)) for name in (*GETTERS, *QUERIES)}
    found |= {name: _plain(getattr(engine, name)) for name in PLAIN}
    engine.destroy()
    return found


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        value = value.model_dump()
    elif isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, int | float | str | None) else str(value)
