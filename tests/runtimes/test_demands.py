"""Values that DeepSpeed reads with plain ``dict.get``, and what it then stumbles over."""

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
    return [found.message for found in resolution.diagnostics if found.name == "program-stops"]


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
def test_a_list_of_names_holds_texts_alone(value: Any, taken: bool) -> None:
    block = {"torch_autocast": {"enabled": True, "lower_precision_safe_modules": value}}
    assert (stops(block) == []) is taken


LAUNCH = {"deepspeed_config": {"zero_stage": 2, "offload_optimizer_device": "none"}}


def test_settings_beside_a_config_file_stop_accelerate() -> None:
    block = {"zero_optimization": {"stage": 2}}
    [said] = stops(block, accelerate(config_file=True), accelerate_config=LAUNCH)
    assert "zero_stage" in said and "ValueError" in said


def test_settings_without_a_config_file_make_the_config() -> None:
    runtime = accelerate(config_file=False, batch_sizes=(1,), optimizer="torch")
    facts = gather(gpus=1, accelerate_config=LAUNCH)
    resolution = dsconfig.resolve({}, facts, runtime=runtime)
    assert [each for each in resolution.diagnostics if each.name == "program-stops"] == []
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
def test_a_scheduler_stands_in_the_config_or_in_the_script(
    written: bool, brought: str | None, stopped: bool
) -> None:
    block: dict[str, Any] = {"zero_optimization": {"stage": 1}}
    if written:
        block["scheduler"] = SCHEDULER
    if brought == "dummy":
        block["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4}}
    runtime = accelerate(batch_sizes=(1,), optimizer=brought or "torch", scheduler=brought)
    said = stops(block, runtime)
    assert bool(said) is stopped, said
    assert all("scheduler" in each for each in said)
