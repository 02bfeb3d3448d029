"""Declarations match the models and schedules of the installed DeepSpeed."""

import inspect
from enum import Enum
from typing import Any

import pytest

from dsconfig.schema import NEWEST, KeyStatus, find
from dsconfig.schema.catalogue import blocks_of, named
from dsconfig.schema.installed import installed_or_newest
from dsconfig.schema.schedules import OWN as OWN_SCHEDULES

pytestmark = [
    pytest.mark.live,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(installed_or_newest() < NEWEST, reason=f"needs DeepSpeed {NEWEST}"),
]


def models() -> dict[str, Any]:
    """DeepSpeed's pydantic models, by the block they read."""
    from deepspeed.comm.config import CommsLoggerConfig
    from deepspeed.compile.config import CompileConfig
    from deepspeed.inference.config import WeightQuantConfig
    from deepspeed.monitor import config as monitor
    from deepspeed.runtime.config import HybridEngineConfig
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
    from deepspeed.runtime.zenflow.zenflow_config import ZenFlowConfig
    from deepspeed.runtime.zero import config as zero
    from deepspeed.runtime.zero import offload_config as offload
    from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig

    return {
        "zero_optimization": zero.DeepSpeedZeroConfig,
        "zero_optimization.offload_param": offload.DeepSpeedZeroOffloadParamConfig,
        "zero_optimization.offload_optimizer": offload.DeepSpeedZeroOffloadOptimizerConfig,
        "zero_optimization.leaf_module": DeepSpeedZeroLeafModuleConfig,
        "zero_optimization.zenflow": ZenFlowConfig,
        "fp16": DeepSpeedFP16Config,
        "bf16": DeepSpeedBF16Config,
        "tensorboard": monitor.TensorBoardConfig,
        "wandb": monitor.WandbConfig,
        "comet": monitor.CometConfig,
        "csv_monitor": monitor.CSVConfig,
        "comms_logger": CommsLoggerConfig,
        "hybrid_engine": HybridEngineConfig,
        "compile": CompileConfig,
        "tensor_parallel": TPTrainingConfig,
        "weight_quantization": WeightQuantConfig,
    }


BLOCKS = [
    "zero_optimization", "zero_optimization.offload_param", "zero_optimization.offload_optimizer",
    "zero_optimization.leaf_module", "zero_optimization.zenflow", "fp16", "bf16", "tensorboard",
    "wandb", "comet", "csv_monitor", "comms_logger", "hybrid_engine", "compile", "tensor_parallel",
    "weight_quantization",
]  # fmt: skip


@pytest.mark.parametrize("path", BLOCKS)
def test_closed_block_names_equal_deepspeed(path: str) -> None:
    block = find(path.split("."))
    assert block is not None
    ours = named(blocks_of(block.shape), block)
    live = {name for name, key in ours.items() if key.status is KeyStatus.LIVE}
    theirs: set[str] = set()
    for name, field in models()[path].model_fields.items():
        theirs |= {name, *([field.alias] if field.alias else [])}
    assert live == theirs


@pytest.mark.parametrize("path", BLOCKS)
def test_closed_block_defaults_equal_deepspeed(path: str) -> None:
    block = find(path.split("."))
    assert block is not None
    ours = named(blocks_of(block.shape), block)
    differing = {
        name: (ours[name].default, field.default)
        for name, field in models()[path].model_fields.items()
        if not (ours[name].is_block or field.is_required() or field.default_factory)
        and ours[name].default != _plain(field.default)
    }
    assert differing == {}


def _plain(default: Any) -> Any:
    if isinstance(default, Enum):
        return default.value
    return str(default) if type(default).__name__ == "dtype" else default


@pytest.mark.parametrize("name", OWN_SCHEDULES)
def test_schedule_arguments_equal_deepspeed(name: str) -> None:
    from deepspeed.runtime import lr_schedules

    params = find(["scheduler", "params"])
    assert params is not None
    (owner,) = blocks_of(params.shape, name)
    signature = inspect.signature(getattr(lr_schedules, name).__init__)
    assert set(owner.model_fields) == set(signature.parameters) - {"self", "optimizer"}
