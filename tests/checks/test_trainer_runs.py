"""What a Trainer run does beyond the config: several engines, other optimizers, all conflicts."""

from dataclasses import replace
from typing import Any

import pytest

import dsconfig
from dsconfig.facts.facts import Companions
from dsconfig.facts.facts import Facts as FactsOf

A = "auto"
ZERO2: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": A,
    "gradient_accumulation_steps": A,
    "train_batch_size": A,
    "zero_optimization": {"stage": 2},
}
SCHEDULED = {
    **ZERO2,
    "optimizer": {"type": "AdamW", "params": {"lr": A, "betas": A, "eps": A, "weight_decay": A}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_num_steps": A,
            "total_num_steps": A,
            "warmup_min_lr": A,
            "warmup_max_lr": A,
        },
    },
}


def run(arguments: dict[str, Any], **facts: Any) -> FactsOf:
    given = {"output_dir": "o", "per_device_train_batch_size": 1, "max_steps": 100, **arguments}
    return dsconfig.gather(training_args=given, gpus=8, **facts)


def errors(config: dict[str, Any], facts: FactsOf, **program: str) -> dict[str, str]:
    found = dsconfig.validate(config, facts, runtime="transformers", **program).errors
    return {each.code: each.message for each in found}


def test_reference_model_starts_before_the_schedule_is_known() -> None:
    facts = run({})
    assert errors(SCHEDULED, facts) == {}
    beside = replace(facts, companions=Companions(copies=1))
    assert "reference model" in errors(SCHEDULED, beside)["DSC704"]
    assert errors(ZERO2, beside) == {}


def test_all_conflicts_are_listed() -> None:
    params = {"warmup_min_lr": 0, "warmup_max_lr": 1e-4, "warmup_num_steps": 500}
    config = {**SCHEDULED, "scheduler": {"type": "WarmupLR", "params": params}}
    found = dsconfig.validate(config, run({"learning_rate": 5e-5}), runtime="transformers").errors
    pointers = {each.pointer.rpartition("/")[2] for each in found}
    assert pointers == {"warmup_max_lr", "warmup_num_steps"}


def test_sequence_parallel_ranks_share_a_batch() -> None:
    facts = run({"gradient_accumulation_steps": 2}, sequence_parallel=2)
    resolved = dsconfig.resolve(ZERO2, facts, runtime="transformers")
    assert resolved.ok and resolved.config["train_batch_size"] == 8


@pytest.mark.parametrize(
    ("optim", "code"), [("adamw_torch", None), ("sgd", "DSC441"), ("paged_adamw_8bit", "DSC441")]
)
def test_offloaded_optimizer_is_that_of_deepspeed(optim: str, code: str | None) -> None:
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    config = {**ZERO2, "bf16": {"enabled": True}, "zero_optimization": zero}
    facts = run({"optim": optim, "bf16": True}, model="llama-2-7b")
    assert set(errors(config, facts)) == ({code} if code else set())
    of_adam = run({"bf16": True}, model="llama-2-7b")
    host = [
        dsconfig.estimate(dsconfig.resolve(config, each, runtime="transformers"), each)
        for each in (facts, of_adam)
    ]
    assert host[0].options[0].host.bytes == host[1].options[0].host.bytes > 0
    kept = {**config, "zero_force_ds_cpu_optimizer": False}
    assert errors(kept, facts) == {}


def test_elastic_runs_have_no_written_batch() -> None:
    elasticity = {
        "enabled": True,
        "max_train_batch_size": 200,
        "micro_batch_sizes": [100, 200],
        "ignore_non_elastic_batch_info": True,
        "min_gpus": 1,
        "max_gpus": 2,
        "version": 0.1,
    }
    config = {"train_batch_size": 200, "train_micro_batch_size_per_gpu": 200}
    report = dsconfig.validate(
        {**config, "elasticity": elasticity},
        dsconfig.gather(gpus=2),
        runtime="deepspeed",
        version="0.12.4",
    )
    assert [each.code for each in report.errors] == []
