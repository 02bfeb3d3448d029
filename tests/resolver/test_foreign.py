"""Replay of other programs: values with reasons, errors, and our findings."""

import pytest

import dsconfig
from dsconfig.facts import gather
from dsconfig.runtimes.accelerate import accelerate
from dsconfig.runtimes.deepspeed import deepspeed
from dsconfig.runtimes.transformers import transformers
from dsconfig.schema.paths import GRADIENT_CLIPPING, MICRO_BATCH
from dsconfig.source import with_overrides
from narrowing import not_none

A = "auto"
ZERO = {"stage": 2, "reduce_bucket_size": A}
FULL = {
    "train_batch_size": A,
    "train_micro_batch_size_per_gpu": A,
    "gradient_accumulation_steps": A,
    "zero_optimization": ZERO,
}
SCHEDULED = {
    **FULL,
    "optimizer": {"type": "AdamW", "params": {"lr": A, "weight_decay": A}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"warmup_num_steps": A, "total_num_steps": A},
    },
}
RUN = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8, "max_steps": 1000}


def codes(resolution):
    return {found.code for found in resolution.diagnostics}


def test_trainer_fills_from_arguments_and_model():
    facts = gather(gpus=8, model="llama-2-7b", training_args=RUN)
    resolution = dsconfig.resolve(FULL, facts, runtime="transformers")
    assert resolution.config["train_batch_size"] == 256
    assert resolution.config["zero_optimization"]["reduce_bucket_size"] == 4096**2
    sources = {entry.pointer: entry.source for entry in resolution.ledger}
    assert sources["/train_batch_size"] == "training"
    assert sources["/zero_optimization/reduce_bucket_size"] == "model"


def test_replay_records_source_of_values():
    filled = accelerate(batch_sizes=(4,), optimizer="dummy", scheduler="dummy")
    facts = gather(
        gpus=2, model="gpt2", accumulation=8, learning_rate=1e-3, total_steps=100,
        warmup_steps=10,
    )  # fmt: skip
    params = {**SCHEDULED["scheduler"]["params"], "warmup_min_lr": A}
    scheduler = {"type": "WarmupDecayLR", "params": params}
    config = {**SCHEDULED, "scheduler": scheduler, "gradient_clipping": A}
    resolution = dsconfig.resolve(config, facts, runtime=filled)
    sources = {entry.pointer.rpartition("/")[2]: entry.source for entry in resolution.ledger}
    assert sources == {
        "train_batch_size": "derived",
        "train_micro_batch_size_per_gpu": "training",
        "gradient_accumulation_steps": "training",
        "gradient_clipping": "default",
        "reduce_bucket_size": "model",
        "lr": "training",
        "weight_decay": "training",
        "warmup_min_lr": "default",
        "warmup_num_steps": "training",
        "total_num_steps": "derived",
        "enabled": "training",
        "steps_per_print": "default",
    }


def test_unset_values_are_accelerate_defaults():
    runtime = accelerate(batch_sizes=(4,), plugin={"zero_stage": 3})
    config = {"train_batch_size": 8, "gradient_accumulation_steps": A, "gradient_clipping": A}
    config["zero_optimization"] = {"stage": A, "offload_param": {"device": A}}
    resolution = dsconfig.resolve(config, gather(gpus=2, model="gpt2"), runtime=runtime)
    sources = {entry.pointer: entry.source for entry in resolution.ledger}
    assert sources["/gradient_accumulation_steps"] == "default"
    assert sources["/zero_optimization/stage"] == "training"
    assert sources["/zero_optimization/offload_param/device"] == "default"


def test_each_trainer_mismatch_is_reported():
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 5, "zero_optimization": {}}
    facts = gather(gpus=2, training_args=RUN)
    resolution = dsconfig.resolve(config, facts, runtime=transformers(entry="config"))
    failure = not_none(resolution.failure)
    assert failure.exception == "ValueError" and set(failure.paths) == {
        MICRO_BATCH,
        GRADIENT_CLIPPING,
    }
    found = {each.code: each for each in resolution.refusals}
    assert found.keys() == {"DSC703", "DSC704"}
    assert "raises a ValueError" in found["DSC703"].message and found["DSC703"].late
    assert "gradient_clipping=5" in found["DSC704"].message


def test_trainer_requires_model():
    resolution = dsconfig.resolve(FULL, gather(gpus=8), runtime="transformers")
    assert codes(resolution) == {"DSC150"}


@pytest.mark.parametrize(
    ("runtime", "flags"),
    [
        ("transformers", ["gpus=", "model=", "total_steps=, or max_steps in training_args="]),
        ("accelerate", ["gpus=", "micro_batch=", "model="]),
        ("deepspeed", ["gpus="]),
    ],
)
def test_missing_facts_are_reported_together(runtime: str, flags: list[str]) -> None:
    scheduler = {"type": "WarmupDecayLR", "params": {"total_num_steps": A}}
    buckets = {"stage": 3, "reduce_bucket_size": A}
    config = {"train_micro_batch_size_per_gpu": A, "zero_optimization": buckets}
    if runtime == "deepspeed":
        config = {"train_micro_batch_size_per_gpu": 1}
    elif runtime == "transformers":
        config |= {"optimizer": {"type": "AdamW"}, "scheduler": scheduler}
    missing = dsconfig.resolve(config, runtime=runtime).diagnostics
    assert {found.code for found in missing} == {"DSC150"}
    assert sorted(not_none(found.help) for found in missing) == [f"specify {f}" for f in flags]


def test_micro_batch_from_eval_loader_is_reported():
    facts = gather(gpus=2, model="gpt2", training_args=RUN)
    resolution = dsconfig.resolve(FULL, facts, runtime=accelerate(batch_sizes=(8, 2)))
    assert resolution.config["train_micro_batch_size_per_gpu"] == 2
    assert "DSC756" in codes(resolution)


def test_divided_total_steps_are_reported():
    facts = gather(gpus=8, model="gpt2", training_args={**RUN, "warmup_steps": 500})
    resolution = dsconfig.resolve(SCHEDULED, facts, runtime="accelerate")
    params = resolution.config["scheduler"]["params"]
    assert (params["total_num_steps"], params["warmup_num_steps"]) == (125, 500)
    assert "DSC752" in codes(resolution)


def test_disabled_precision_is_reported():
    facts = gather(gpus=1, model="gpt2", training_args={**RUN, "bf16": True})
    config = {**FULL, "bf16": {"enabled": False}}
    assert "DSC703" in codes(dsconfig.validate(config, facts, runtime="accelerate"))
    flag = gather(gpus=1, model="gpt2", micro_batch=4, global_batch=32, precision="bf16")
    assert "DSC753" in codes(dsconfig.resolve(config, flag, runtime="accelerate"))


def test_warmup_of_one_is_one_step():
    for given, steps in ((1, 1), (0.1, 100), (500, 500)):
        facts = gather(gpus=8, model="gpt2", training_args={**RUN, "warmup_steps": given})
        resolution = dsconfig.resolve(SCHEDULED, facts, runtime="transformers")
        assert resolution.config["scheduler"]["params"]["warmup_num_steps"] == steps


@pytest.mark.parametrize(("card", "sums"), [("h100", None), ("mi300x", "fp32")])
def test_accelerate_accumulates_bf16_in_fp32_on_rocm(card, sums):
    facts = gather(gpus=1, device=card, model="gpt2", training_args=RUN | {"bf16": True})
    resolution = dsconfig.resolve(FULL, facts, runtime="accelerate")
    assert resolution.config.get("communication_data_type") == sums


@pytest.mark.parametrize("enabled", [A, True])
def test_enabled_precision_is_not_reported(enabled):
    facts = gather(gpus=1, model="gpt2", training_args={**RUN, "bf16": True})
    config = {**FULL, "bf16": {"enabled": enabled}}
    assert "DSC753" not in codes(dsconfig.resolve(config, facts, runtime="accelerate"))


def test_dropped_auto_is_reported():
    config = {"train_batch_size": 8, "zero_optimization": {"stage": A}}
    resolution = dsconfig.resolve(config, gather(gpus=2), runtime="deepspeed")
    assert "stage" not in resolution.config["zero_optimization"]
    assert codes(resolution) == {"DSC101"}
    assert not resolution.ok, "ZeRO is off: that is not what the file says"


def test_late_error_of_parsed_auto():
    config = {"train_batch_size": 8, "gradient_clipping": A}
    facts = gather(gpus=2, client_optimizer="torch.AdamW")
    parsed = dsconfig.resolve(config, facts, runtime=deepspeed(until="parse"))
    stepped = dsconfig.resolve(config, facts, runtime=deepspeed(until="step"))
    assert not parsed.refusals
    (found,) = stepped.diagnostics
    assert found.code == "DSC101" and found.late and "raises TypeError" in found.message


def test_data_parallel_size_of_mpu_is_used():
    config = {"train_batch_size": 64, "gradient_accumulation_steps": 4}
    facts = gather(gpus=8, tensor_parallel=2)
    resolution = dsconfig.resolve(config, facts, runtime=deepspeed(mpu=True))
    assert resolution.config["train_micro_batch_size_per_gpu"] == 4


def test_single_beta_stops_deepspeed():
    config = {
        "train_batch_size": 8,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9]}},
    }
    resolution = dsconfig.resolve(config, gather(gpus=2), runtime=deepspeed())
    (found,) = resolution.diagnostics
    assert found.pointer == "/optimizer/params/betas" and "ValueError" in found.message


def test_transformers_reads_numbers_as_json_does() -> None:
    text = '{"train_batch_size": 8.0, "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8}}'
    facts = dsconfig.gather(gpus=1, training_args={"per_device_train_batch_size": 8})
    hugging = dsconfig.resolve(text, facts, runtime="transformers").config
    assert type(hugging["train_batch_size"]) is float
    assert type(hugging["zero_optimization"]["reduce_bucket_size"]) is float
    alone = dsconfig.resolve(text, facts, runtime="deepspeed").config
    assert type(alone["train_batch_size"]) is int


@pytest.mark.parametrize("runtime", ["transformers", "accelerate"])
def test_integer_override_replaces_a_float_of_the_file(runtime: str) -> None:
    text = '{"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"sub_group_size": 5e8}}'
    changed = ["zero_optimization.sub_group_size=100"]
    document = with_overrides(dsconfig.read(text), changed)
    config = dsconfig.resolve(document, gather(gpus=1), runtime=runtime).config
    assert config["zero_optimization"]["sub_group_size"] == 100


def test_unspecified_learning_rate_is_that_of_dummy_optim():
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": A, "weight_decay": A}},
        "zero_optimization": {"stage": 2},
    }
    resolution = dsconfig.resolve(config, gather(gpus=2, micro_batch=1), runtime="accelerate")
    assert resolution.config["optimizer"]["params"] == {"lr": 0.001, "weight_decay": 0}
    assert not resolution.refusals


@pytest.mark.parametrize("runtime", ["transformers", "accelerate"])
def test_parameter_count_alone_does_not_size_buckets(runtime):
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
    config["zero_optimization"]["reduce_bucket_size"] = A
    facts = gather(gpus=2, micro_batch=1, params="7e9")
    (found,) = dsconfig.resolve(config, facts, runtime=runtime).refusals
    assert found.code == "DSC150" and "model=" in not_none(found.help)
    report = dsconfig.validate(config, facts, runtime=runtime)
    assert "DSC704" not in {found.code for found in report.diagnostics}
