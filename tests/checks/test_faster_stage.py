"""DSC505: stage 0 fits and is estimated to be faster."""

import json
from typing import Any

import pytest

import dsconfig
from dsconfig.checks.registry import rules
from dsconfig.reference.examples import check_example

BAD = rules()["DSC505"].bad


def is_found(change: dict[str, Any] | None = None, **example: Any) -> bool:
    config = {**json.loads(BAD.config), **(change or {})}
    made = BAD._replace(config=json.dumps(config)).with_facts(**example)
    return "DSC505" in {each.code for each in check_example(made)}


def test_small_model_fits_without_sharding() -> None:
    assert is_found()
    offloaded = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    assert is_found(offloaded)


def test_estimates_are_those_of_both_stages() -> None:
    facts = dsconfig.gather(model="gpt2", gpus=2, device="rtx-4090", seq_len=512)
    steps = []
    for stage in (0, 2):
        config = {**json.loads(BAD.config), "zero_optimization": {"stage": stage}}
        resolved = dsconfig.resolve(config, facts, runtime="deepspeed")
        option = dsconfig.estimate(resolved, facts).options[0]
        assert option.step is not None
        steps.append(f"{option.step.seconds:.3g} s")
    (message,) = (each.message for each in check_example(BAD) if each.code == "DSC505")
    assert f"{steps[0]} instead of {steps[1]}" in message


@pytest.mark.parametrize(
    "change",
    [
        {"bf16": {"enabled": False}, "fp16": {"enabled": True}},
        {"optimizer": {"type": "Muon", "params": {"lr": 0.02}}},
        {"data_types": {"grad_accum_dtype": "fp32"}},
        {"sequence_parallel_size": 2},
        {"zero_optimization": {"stage": "auto"}},
        {"train_micro_batch_size_per_gpu": "auto"},
    ],
)
def test_settings_that_stage_0_does_not_train_alike(change: dict[str, Any]) -> None:
    assert not is_found(change)


def test_model_without_room_or_facts() -> None:
    assert not is_found(model="llama-2-7b")
    assert not is_found(seq_len=None)
    assert not is_found(gpus=1)


def test_auto_is_filled_in_by_the_arguments() -> None:
    config = {
        **json.loads(BAD.config),
        "train_micro_batch_size_per_gpu": "auto",
        "bf16": {"enabled": "auto"},
    }
    arguments = {"per_device_train_batch_size": 2, "bf16": True, "max_length": 512}
    facts = dsconfig.gather(
        model="gpt2", gpus=2, device="rtx-4090", seq_len=512, training_args=arguments
    )
    report = dsconfig.validate(config, facts, runtime="transformers")
    assert "DSC505" in {each.code for each in report.diagnostics}
