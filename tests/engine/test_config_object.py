"""``DeepSpeedConfig`` and the monitors: a ds_config as an object."""

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dsengine.monitor.config import DeepSpeedMonitorConfig, TensorBoardConfig, get_monitor_config
from dsengine.monitor.csv_monitor import csvMonitor
from dsengine.monitor.monitor import MonitorMaster
from dsengine.monitor.tensorboard import TensorBoardMonitor
from dsengine.monitor.wandb import WandbMonitor
from dsengine.runtime import config as module
from dsengine.runtime import constants
from dsengine.runtime.config import DeepSpeedConfig, DeepSpeedConfigError
from dsengine.runtime.zero.config import ZeroStageEnum

import dsconfig
import dsengine
from training.ranks import Ranks

pytestmark = pytest.mark.engine

CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 3,
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
        "stage3_max_live_parameters": 1e6,
    },
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "scheduler": {"type": "WarmupLR", "params": {}},
    "gradient_clipping": 0.5,
    "gradient_allreduce_op": "MEAN",
    "csv_monitor": {"enabled": True, "output_path": "curves"},
    "communication_data_type": "fp32",
    "torch_autocast": {"enabled": False, "dtype": "bfloat16"},
    "checkpoint": {"tag_validation": "Fail", "load_universal": True},
    "flops_profiler": {"enabled": True},
    "log_level": "ERROR",
    "data_types": {"grad_accum_dtype": "fp32"},
    "aio": {"block_size": 5},
    "comms_logger": {"enabled": True},
    "timers": {"throughput": {"enabled": False}},
}


def test_config_object_has_file_values_and_defaults() -> None:
    config_object = DeepSpeedConfig(CONFIG)
    assert (config_object.train_batch_size, config_object.world_size) == (12, 1)
    assert config_object.gradient_clipping == 0.5 and config_object.prescale_gradients is False
    assert config_object.gradient_allreduce_op == "mean"
    assert config_object.zero_config.stage is ZeroStageEnum.weights and config_object.zero_enabled
    assert config_object.zero_config.max_live_parameters == 1_000_000
    assert config_object.zero_config.offload_optimizer.pin_memory is True
    assert (config_object.bfloat16_config.enabled, config_object.float16_config.enabled) == (
        True,
        False,
    )
    assert (config_object.optimizer_name, config_object.optimizer_params) == ("adamw", {"lr": 1e-4})
    assert config_object.communication_data_type is torch.float32
    assert config_object.torch_autocast_dtype is torch.bfloat16
    assert config_object.checkpoint_tag_validation_fail and config_object.load_universal_checkpoint
    assert config_object.wall_clock_breakdown, "enabled by the profiler"
    assert (
        config_object.timers_config.enabled is False and config_object.aio_config["block_size"] == 5
    )


@pytest.mark.parametrize("form", ["path", "text", "base64"])
def test_config_object_accepts_every_form(form: str, tmp_path: Path) -> None:
    text = json.dumps({"train_batch_size": 8})
    path = tmp_path / "ds.json"
    path.write_text(text)
    coded = base64.urlsafe_b64encode(text.encode()).decode()
    config_object = DeepSpeedConfig({"path": path, "text": str(path), "base64": coded}[form])
    assert config_object.train_micro_batch_size_per_gpu == 8


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"train_batch_size": 1, "gradient_allreduce_op": "max"}, "Invalid gradient_allreduce_op"),
        (
            {
                "train_batch_size": 1,
                "gradient_allreduce_op": "sum",
                "zero_optimization": {"stage": 3},
            },
            "not supported with ZeRO stage 3",
        ),
        ({"train_batch_size": 1, "nebula": {}}, "Invalid nebula"),
        ({"gradient_accumulation_steps": 2}, "train_batch_size"),
        ({"train_batch_size": 1, "fp16": {"loss_scale": "much"}}, "Invalid fp16.loss_scale"),
    ],
)
def test_config_object_refuses_what_deepspeed_refuses(config: dict[str, Any], words: str) -> None:
    with pytest.raises(DeepSpeedConfigError, match=words) as refused:
        DeepSpeedConfig(config)
    assert isinstance(refused.value, ValueError) and isinstance(refused.value, AssertionError)
    assert DeepSpeedConfigError is dsengine.DeepSpeedConfigError


def test_duplicate_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"train_batch_size": 24, "train_batch_size": 24}')
    with pytest.raises(DeepSpeedConfigError, match="train_batch_size"):
        DeepSpeedConfig(tmp_path / "ds.json")


def test_config_object_accepts_errors_that_appear_only_in_step() -> None:
    late = {"train_batch_size": 1, "zero_optimization": {"stage": 2, "zenflow": {}}}
    assert DeepSpeedConfig(late).zero_config.zenflow is not None
    late = {"train_batch_size": 1, "gradient_clipping": "auto"}
    assert DeepSpeedConfig(late).gradient_clipping == "auto"


def test_batch_sizes_use_data_parallel_size_of_mpu() -> None:
    mpu = SimpleNamespace(get_data_parallel_world_size=lambda: 4)
    assert DeepSpeedConfig({"train_batch_size": 32}, mpu).train_micro_batch_size_per_gpu == 8


def test_batch_sizes_use_process_group_size(ranks: Ranks) -> None:
    config = {"train_batch_size": 32, "gradient_accumulation_steps": 2}
    assert ranks.run("training.deepspeed_api_jobs:resolved_batch", config=config) == [
        (8, 2),
        (8, 2),
    ]


def test_getter_functions_read_single_values() -> None:
    assert module.get_gradient_clipping({}) == constants.GRADIENT_CLIPPING_DEFAULT == 1.0
    assert module.get_gradient_clipping({"gradient_clipping": 0.0}) == 0.0
    assert module.get_log_level({"log_level": "DEBUG"}) == "DEBUG"
    assert constants.LOG_LEVEL_DEFAULT is None


def test_constants_equal_schema_keys_and_defaults() -> None:
    assert constants.TRAIN_BATCH_SIZE == "train_batch_size"
    assert module.ADAM_OPTIMIZER == "adam" and module.ONEBIT_LAMB_OPTIMIZER == "onebitlamb"
    for holder, name in ((constants, "NONSENSE"), (module, "NONSENSE_OPTIMIZER")):
        with pytest.raises(AttributeError, match=name):
            getattr(holder, name)


# Monitors


def test_monitors_have_the_fields_of_their_blocks() -> None:
    given = {"tensorboard": {"job_name": "one"}, "wandb": {"group": "two", "team": "three"}}
    of = get_monitor_config(given)
    assert not of.enabled
    assert TensorBoardMonitor(of.tensorboard).job_name == "one"
    wandb = WandbMonitor(of.wandb)
    assert (wandb.group, wandb.team, wandb.project) == ("two", "three", "deepspeed")
    defaults = DeepSpeedMonitorConfig().csv_monitor
    assert vars(DeepSpeedConfig({"train_batch_size": 1}).monitor_config.csv_monitor) == vars(
        defaults
    )


def test_enabled_monitor_writes_events(tmp_path: Path) -> None:
    block = {"output_path": str(tmp_path), "job_name": "job"}
    events = [("Train/accuracy", 0.5, 16), ("Train/accuracy", 0.75, 32)]
    off = csvMonitor(get_monitor_config({"csv_monitor": block}).csv_monitor)
    off.write_events(events)
    assert not list(tmp_path.iterdir())
    on = get_monitor_config({"csv_monitor": {"enabled": True, **block}})
    assert on.enabled
    csvMonitor(on.csv_monitor).write_events(events[:1])
    MonitorMaster(on).write_events(events[1:])
    written = (tmp_path / "job" / "Train_accuracy.csv").read_text().splitlines()
    assert written == ["step,accuracy", "16,0.5", "32,0.75"]


def test_enabled_monitor_requires_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(ImportError, match="pip install wandb"):
        WandbMonitor(get_monitor_config({"wandb": {"enabled": True}}).wandb)


def test_block_with_unknown_key_is_refused() -> None:
    with pytest.raises(ValueError, match="job"):
        TensorBoardConfig(jobname="misspelt")
    with pytest.raises(ValueError, match="unknown monitor"):
        DeepSpeedMonitorConfig(tensorbord={})


def test_config_values_include_all_defaults() -> None:
    values = dsconfig.config_values({"bfloat16": {"enabled": True}, "zero_optimization": True})
    assert values["bf16"]["enabled"] is True
    assert values["zero_optimization"]["stage"] == 1
    assert values["optimizer"] == {"type": None, "params": None, "legacy_fusion": False}
    assert "amp" not in values, "no longer read"
    with pytest.raises(ValueError, match="gradient_clipping"):
        dsconfig.config_values({"gradient_clipping": "auto"})


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", [{"train_batch_size": 64}, CONFIG])
def test_config_object_equals_deepspeed(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    real = pytest.importorskip("deepspeed.runtime.config").DeepSpeedConfig(config)
    ours = DeepSpeedConfig(config)
    for name, value in vars(real).items():
        if name in vars(ours) and not name.startswith("_"):
            assert _plain(vars(ours)[name]) == _plain(value, like=vars(ours)[name]), name


def _plain(value: Any, like: Any = None) -> Any:
    """Return a block as a dict, restricted to the fields of ``like``."""
    if not hasattr(value, "__dict__") or isinstance(value, torch.dtype | ZeroStageEnum):
        return value
    names = vars(value if like is None else like)
    return {n: _plain(getattr(value, n), names[n]) for n in names if hasattr(value, n)}
