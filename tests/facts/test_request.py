"""Facts are declared once: flags, arguments of ``gather`` and what they mean in each command."""

from typing import Any

import pytest

import dsconfig
from dsconfig.commands.app import build
from dsconfig.cost.activations import Recompute
from dsconfig.cost.loss import Loss
from dsconfig.facts.inputs import FactError
from dsconfig.facts.request import DECLARED, FactsRequest, flag_of

RUN: dict[str, Any] = {"gpus": 2, "device": "a100-80gb", "model": "llama-2-7b", "seq_len": 2048}
CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
    "zero_optimization": {"stage": 3},
}


@pytest.mark.parametrize("command", ["validate", "resolve", "estimate", "plan", "tune", "diff"])
def test_flags_of_a_command_are_all_facts(command: str) -> None:
    flags = {parameter.name: parameter for parameter in build(command).params}
    for name in DECLARED:
        assert flag_of(name) in flags[name].opts


def test_choices_are_those_of_the_estimate() -> None:
    assert DECLARED["recompute"].choices == tuple(map(str, Recompute))
    assert set(DECLARED["loss"].choices) == set(map(str, Loss))


def test_what_is_stated() -> None:
    assert FactsRequest().stated == {}
    assert FactsRequest(gpus=2, fused_kernels=True, lora_dropout=0.1).stated == {
        "gpus": 2,
        "fused_kernels": True,
        "lora_dropout": 0.1,
    }


@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        ("recompute", "all", "recompute: 'all' is not one of none, selective, full"),
        ("attention", "sdpa", "attention: 'sdpa' is not one of flash, eager"),
        ("loss", "liger", "loss: 'liger' is not one of plain, 16bit, fused"),
        ("loss", 5, "loss: 5 is not a string"),
        ("fused_kernels", "yes", "fused_kernels: 'yes' is not a bool"),
    ],
)
def test_values_that_are_not_known(argument: str, value: object, words: str) -> None:
    gather: Any = dsconfig.gather
    with pytest.raises(FactError, match=words):
        gather(**{argument: value})


@pytest.mark.parametrize(
    ("stated", "written"),
    [
        ({"recompute": "full"}, {"gradient_checkpointing": True}),
        ({"recompute": "none"}, {"gradient_checkpointing": False}),
        ({"attention": "eager"}, {"attn_implementation": "eager"}),
        ({"fused_kernels": True}, {"use_liger_kernel": True}),
        ({"loss": "fused"}, {"loss": "fused"}),
    ],
)
def test_kernels_are_estimated_as_if_in_training_arguments(
    stated: dict[str, Any], written: dict[str, Any]
) -> None:
    def peak(**more: Any) -> int:
        facts = dsconfig.gather(**RUN, **more)
        resolution = dsconfig.resolve(CONFIG, facts, runtime="deepspeed")
        return dsconfig.estimate(resolution, facts).options[0].device.peak_bytes

    assert peak(**stated) == peak(training_args=written)
    # They win over TrainingArguments, and do not make the run one of the Trainer.
    other = {"gradient_checkpointing": "selective", "attn_implementation": "sdpa"}
    assert peak(**stated, training_args=other) == peak(training_args=other | written)
    assert not dsconfig.gather(**RUN, **stated).arguments


def test_stated_recomputation_reaches_the_rules() -> None:
    config = CONFIG | {"activation_checkpointing": {"partition_activations": True}}

    def codes(**facts: Any) -> set[str]:
        report = dsconfig.validate(config, dsconfig.gather(**facts), runtime="deepspeed")
        return {finding.code for finding in report.diagnostics}

    assert "DSC905" in codes() & codes(recompute="none")
    assert "DSC905" not in codes(recompute="full")
