"""Checks of values that DeepSpeed reads with plain ``dict.get``."""

from typing import Any

import pytest

import dsconfig
from dsconfig.facts import gather
from dsconfig.runtimes.accelerate import accelerate
from dsconfig.runtimes.deepspeed import deepspeed


def stops(block: dict[str, Any], runtime: Any = None, **facts: Any) -> list[str]:
    config = {"train_micro_batch_size_per_gpu": 1, **block}
    resolution = dsconfig.resolve(
        config, gather(gpus=1, **facts), runtime=runtime or deepspeed(until="parse")
    )
    return [str(resolution.failure)] if resolution.failure is not None else []


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        (["torch.nn.Linear"], True),
        ([], True),
        ("torch.nn.Linear", True),
        (["torch.nn.Linear", 3], False),
        ([None], False),
        (3, False),
        (None, False),
    ],
)
def test_name_list_accepts_only_strings(value: Any, taken: bool) -> None:
    block = {"torch_autocast": {"enabled": True, "lower_precision_safe_modules": value}}
    assert (stops(block) == []) is taken


LAUNCH = {"deepspeed_config": {"zero_stage": 2, "offload_optimizer_device": "none"}}


def test_accelerate_refuses_each_setting_in_addition_to_a_config_file() -> None:
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
    facts = gather(gpus=1, accelerate_config=LAUNCH)
    resolution = dsconfig.resolve(config, facts, runtime=accelerate(config_file=True))
    refusals = [each for each in resolution.diagnostics if each.code == "DSC704"]
    assert {refusal.pointer for refusal in refusals} == {
        "/deepspeed_config/zero_stage",
        "/deepspeed_config/offload_optimizer_device",
    }
    assert len(refusals) == 2
    for refusal in refusals:
        assert "zero_stage" in refusal.message and "ValueError" in refusal.message


def test_accelerate_settings_without_config_file_create_the_config() -> None:
    runtime = accelerate(config_file=False, batch_sizes=(1,), optimizer="torch")
    facts = gather(gpus=1, accelerate_config=LAUNCH)
    resolution = dsconfig.resolve({}, facts, runtime=runtime)
    assert resolution.failure is None
    assert resolution.config["zero_optimization"]["stage"] == 2


SCHEDULER = {"type": "WarmupLR", "params": {"warmup_num_steps": 3}}


@pytest.mark.parametrize(
    ("written", "brought", "stopped"),
    [
        (False, "torch", False),
        (False, None, False),
        (False, "dummy", True),
        (True, "torch", True),
        (True, "dummy", False),
    ],
)
def test_scheduler_in_both_config_and_script_is_refused(
    written: bool, brought: str | None, stopped: bool
) -> None:
    block: dict[str, Any] = {"zero_optimization": {"stage": 1}}
    if written:
        block["scheduler"] = SCHEDULER
    if brought == "dummy":
        block["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4}}
    runtime = accelerate(batch_sizes=(1,), optimizer=brought or "torch", scheduler=brought)
    message = stops(block, runtime)
    assert bool(message) is stopped, message
    assert all("scheduler" in each for each in message)
