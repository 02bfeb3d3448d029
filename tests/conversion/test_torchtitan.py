"""``dsconfig convert --to torchtitan``: sections, fields and types of torchtitan's job config."""

import ast
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from conversion import corpus
from dsconfig import Facts
from dsconfig.conversion import torchtitan
from dsconfig.runtimes.effective import Precision, effective

JOB_CONFIG = Path(__file__).parents[1] / "oracle" / "torchtitan_job_config.json"
SECTIONS: dict[str, dict[str, str]] = json.loads(JOB_CONFIG.read_text())["sections"]
BASE: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
}


def converted(ranks: int = 8, **more: Any) -> dict[str, Any]:
    config = {**BASE, **more}
    return tomllib.loads(torchtitan.toml_text(effective(config, Facts(world_size=ranks))))


def accepts(annotation: str, value: object) -> bool:
    """Return whether a value has the annotated type."""
    if annotation.startswith("Literal"):
        return value in ast.literal_eval(annotation.removeprefix("Literal"))
    kinds = {"str": str, "int": int, "float": float, "bool": bool}
    allowed = tuple(kinds[name] for name in annotation.split(" | ") if name in kinds)
    return isinstance(value, allowed) and (bool in allowed or not isinstance(value, bool))


def test_every_setting_of_the_corpus_is_one_of_torchtitan() -> None:
    count = 0
    for file, settings, _ in corpus.resolved():
        if settings.numerics.precision is Precision.FP16:
            continue
        count += 1
        for section, values in tomllib.loads(torchtitan.toml_text(settings)).items():
            for name, value in values.items():
                assert accepts(SECTIONS[section][name], value), (file, section, name, value)
    assert count > 100


def test_batch_degrees_and_precision() -> None:
    job = converted(zero_optimization={"stage": 2, "offload_optimizer": {"device": "cpu"}})
    assert job["training"]["local_batch_size"] == 2
    assert job["training"]["global_batch_size"] == 64
    assert job["training"]["mixed_precision_param"] == "bfloat16"
    assert job["training"]["enable_cpu_offload"] is True
    assert job["parallelism"]["data_parallel_shard_degree"] == 8
    assert job["parallelism"]["fsdp_reshard_after_forward"] == "never"
    job = converted(zero_optimization={"stage": 3, "mics_shard_size": 4})
    assert job["parallelism"]["data_parallel_replicate_degree"] == 2
    assert job["parallelism"]["data_parallel_shard_degree"] == 4


def test_optimizer_and_schedule() -> None:
    optimizer = {"type": "Adam", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}}
    params = {"warmup_num_steps": 100, "total_num_steps": 1000, "warmup_max_lr": 3e-4}
    job = converted(optimizer=optimizer, scheduler={"type": "WarmupDecayLR", "params": params})
    expected = {"name": "AdamW", "lr": 3e-4, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.0}
    assert job["optimizer"] == expected
    assert job["training"]["steps"] == 1000
    assert job["lr_scheduler"] == {
        "warmup_steps": 100,
        "decay_ratio": 0.9,
        "decay_type": "linear",
        "min_lr_factor": 0.0,
    }


def test_defaults_are_those_of_torch() -> None:
    for name, decay in (("AdamW", 0.01), ("Adam", 0.0)):
        params = {"torch_adam": True, "adam_w_mode": name == "AdamW"}
        optimizer = converted(optimizer={"type": name, "params": params})["optimizer"]
        expected = {"name": name, "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": decay}
        assert optimizer == expected


def test_what_torchtitan_does_differently_is_stated() -> None:
    scheduler = {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}
    offload = {"device": "nvme", "nvme_path": "/nvme"}
    config = {
        **BASE,
        "scheduler": scheduler,
        "zero_optimization": {"stage": 3, "offload_optimizer": offload},
        "activation_checkpointing": {"cpu_checkpointing": True},
    }
    text = torchtitan.toml_text(effective(config, Facts(world_size=8)))
    assert "reduced in fp32, not bf16" in text and "warms up linearly" in text
    assert '#   zero_optimization.offload_optimizer.device = "nvme"' in text
    assert "#   activation_checkpointing.cpu_checkpointing = true" in text
    scheduler["params"] |= {"warmup_type": "linear"}  # type: ignore[operator]
    exact = {**BASE, "scheduler": scheduler, "communication_data_type": "fp32"}
    assert "Different" not in torchtitan.toml_text(effective(exact, Facts(world_size=8)))


def test_what_is_not_converted_is_listed() -> None:
    config = {
        **BASE,
        "optimizer": {"type": "Lion", "params": {"lr": 1e-4}},
        "wall_clock_breakdown": True,
    }
    text = torchtitan.toml_text(effective(config, Facts(world_size=8)))
    assert '#   optimizer.type = "Lion"' in text and "#   optimizer.params.lr = 0.0001" in text
    assert "#   wall_clock_breakdown = true" in text


def test_fp16_is_refused() -> None:
    with pytest.raises(ValueError, match="does not train in fp16"):
        converted(bf16={"enabled": False}, fp16={"enabled": True})
