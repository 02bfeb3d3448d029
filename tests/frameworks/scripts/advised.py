"""The settings that accelerate passes to DeepSpeed after a remedy is applied."""

import json
import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import accelerate
import deepspeed
import torch
import yaml
from accelerate.state import AcceleratorState
from accelerate.utils import DeepSpeedPlugin
from deepspeed.runtime.config import DeepSpeedConfig


def passed_settings(config: dict[str, Any], script: list[str], setting: str) -> dict[str, Any]:
    """Return DeepSpeed's settings; ``script`` are calls, ``setting`` lines of a YAML file."""
    launch = yaml.safe_load(setting) or {}
    os.environ["ACCELERATE_MIXED_PRECISION"] = launch.get("mixed_precision", "no")
    AcceleratorState._reset_state(reset_partial_state=True)
    model: Any = torch.nn.Linear(4, 4)
    model.config = type("Config", (), {"hidden_size": 4})()
    plugin = DeepSpeedPlugin(hf_ds_config=config)
    samples: Any = torch.ones(8, 4)
    calls: dict[str, Any] = {
        "Accelerator": partial(accelerate.Accelerator, deepspeed_plugin=plugin),
        "DataLoader": lambda _, **how: torch.utils.data.DataLoader(samples, **how),
        "DummyOptim": lambda _, **how: accelerate.utils.DummyOptim(model.parameters(), **how),
    }
    usual = ["Accelerator()", "DataLoader(..., batch_size=1)", "DummyOptim(..., lr=1e-3)"]
    made = {name(call): call for call in (*usual, *script)}
    accelerator, *rest = (eval(made[name(call)], calls) for call in usual)
    seen: dict[str, Any] = {}

    def initialize(**how: Any) -> Any:
        seen.update(how)
        raise StopIteration

    with patch.object(deepspeed, "initialize", initialize), suppress(StopIteration):
        accelerator.prepare(model, *rest)
    read = DeepSpeedConfig(seen["config_params"])
    zero = read.zero_config
    return {
        "micro": read.train_micro_batch_size_per_gpu,
        "accumulation": read.gradient_accumulation_steps,
        "stage": int(zero.stage),
        "offload_optimizer": device_of(zero.offload_optimizer),
        "offload_param": device_of(zero.offload_param),
        "reduce_bucket_size": zero.reduce_bucket_size,
        "bf16": read.bfloat16_config.enabled,
        "fp16": read.float16_config.enabled,
        "lr": read.optimizer_params and read.optimizer_params["lr"],
    }


def device_of(block: Any) -> str:
    device = block.device if block else "none"
    return getattr(device, "value", device)


def name(call: str) -> str:
    return call.partition("(")[0]


if __name__ == "__main__":
    target, jobs = sys.argv[1:]
    results = [passed_settings(*job) for job in json.loads(Path(jobs).read_text())]
    Path(target).write_text(json.dumps(results))
