"""Replay what transformers, accelerate and DeepSpeed did with "auto".

Agreement: equal values on every key of the recorded config; or an error of the same class
that names the same keys (the text of bare errors names none). Where only DeepSpeed's parser was
run, ``validate`` refuses the file exactly when the parser did.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import dsconfig
from dsconfig.facts import Facts, ModelTree, TrainingFacts, gather
from dsconfig.mesh import Degrees
from dsconfig.runtimes.accelerate import accelerate
from dsconfig.runtimes.base import Runtime
from dsconfig.runtimes.deepspeed import deepspeed
from dsconfig.runtimes.transformers import transformers
from replays import Case
from replays._entry_points import refuses

BUCKETS = (
    ("reduce_bucket_size", 500_000_000),
    ("stage3_prefetch_bucket_size", 50_000_000),
    ("stage3_param_persistence_threshold", 100_000),
)
SHAPES = ("hidden_size", "hidden_sizes")
TRAINER = "Trainer.train->deepspeed.initialize"


def replay(path: Path) -> Iterator[Case]:
    for line in path.read_text().splitlines():
        row = json.loads(line)
        case = compared(row)
        yield case if validate_agrees(row) else replace(case, got="validate", agrees=False)


def validate_agrees(row: Mapping[str, Any]) -> bool:
    if row["tool"] != "deepspeed" or row["facts"]["phase"] != "parse":
        return True
    report = dsconfig.validate(row["input_config"], facts_of(row), runtime=runtime_of(row))
    return any(map(refuses, report.diagnostics)) == (row["outcome"] == "error")


def compared(row: Mapping[str, Any]) -> Case:
    runtime = runtime_of(row)
    config = row["input_config"] or {}
    resolution = dsconfig.resolve(config, facts_of(row), runtime=runtime)
    failure = resolution.failure
    if row["outcome"] == "error":
        expected: Any = (row["error"].split(":")[0], sorted(named(row["error"])))
        got: Any = (failure.exception, sorted(map(str, failure.paths))) if failure else ("", [])
        same = got[0] == expected[0] and (not expected[1] or got[1] == expected[1])
        return Case(row["id"], expected, got, same)
    expected = row["output_config"]
    got = view(resolution.config) if row["tool"] == "deepspeed" else finite(resolution.config)
    if failure is not None:
        got = str(failure)
    return Case(row["id"], expected, got, expected == got and same_types(expected, got))


def runtime_of(row: Mapping[str, Any]) -> Runtime:
    facts, entry = row["facts"], row["entry"]
    environment = facts.get("env", {})
    if entry == "Accelerator.prepare":
        return accelerate(
            config_file=row["input_config"] is not None,
            plugin=facts.get("plugin", {}),
            environment=environment,
            mixed_precision=facts["mixed_precision"],
            optimizer=facts["optimizer"],
            scheduler=facts["scheduler"],
            batch_sizes=batch_sizes(facts),
            split_batches=facts.get("split_batches", False),
        )
    if row["tool"] == "transformers":
        return transformers(
            entry="trainer" if entry == TRAINER else "config",
            through_accelerate="launch" in facts,
            config_file=row["input_config"] is not None,
            environment=environment,
        )
    return deepspeed(until=facts["phase"], mpu="data_parallel_world_size" in facts)


def batch_sizes(facts: Mapping[str, Any]) -> tuple[int | None, ...]:
    if facts["dataloader"] == "none":
        return ()
    if facts["dataloader"] == "batch_sampler":
        return (None,)
    train = facts["per_device_train_batch_size"]
    if facts.get("split_batches"):
        # The loaders yield the batch of all processes, which accelerate splits among them.
        train *= facts["world_size"]
    return (train, facts["eval_batch_size"]) if "eval_batch_size" in facts else (train,)


def facts_of(row: Mapping[str, Any]) -> Facts:
    recorded = row["facts"]
    world = recorded["world_size"]
    return Facts(
        world_size=world,
        degrees=Degrees(tensor=world // recorded.get("data_parallel_world_size", world)),
        device=gather(device="cpu").device if recorded.get("device") == "cpu" else None,
        model=model_of(recorded),
        training=training_of(row),
        client_optimizer=recorded.get("client_optimizer"),
    )


def model_of(recorded: Mapping[str, Any]) -> ModelTree | None:
    """Return the attributes of ``model.config`` in this row; None without a model config."""
    config: dict[str, Any] | None = dict(recorded.get("model_config", {}))
    assert config is not None
    config |= {name: recorded[name] for name in SHAPES if name in recorded}
    text = {name: recorded[f"text_{name}"] for name in SHAPES if f"text_{name}" in recorded}
    if text:
        config["text_config"] = text
    if recorded.get("no_config"):
        config = None
    return ModelTree(name="row", parameters=1, trainable=1, config=config)


def training_of(row: Mapping[str, Any]) -> TrainingFacts | None:
    given = dict(row["facts"])
    if row["tool"] == "deepspeed":
        return None
    if row["tool"] == "transformers":
        return TrainingFacts(arguments=given)
    return TrainingFacts(
        micro_batch_size=given["per_device_train_batch_size"],
        gradient_accumulation_steps=given["gradient_accumulation_steps"],
        learning_rate=given.get("learning_rate"),
        weight_decay=given.get("weight_decay"),
        warmup_steps=given.get("warmup_steps"),
        total_steps=given.get("num_training_steps"),
    )


def view(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parsed config as in the DeepSpeed rows, with defaults."""
    zero = config.get("zero_optimization")
    zero = {"stage": int(zero)} if isinstance(zero, bool) else zero or {}
    stage = zero.get("stage", 0)
    shown: dict[str, Any] = {
        key: config.get(key)
        for key in (
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
        )
    }
    shown["gradient_clipping"] = config.get("gradient_clipping", 1.0)
    shown["zero_optimization"] = {
        "stage": stage,
        **{key: zero.get(key, default) for key, default in BUCKETS},
        "overlap_comm": overlap
        if (overlap := zero.get("overlap_comm")) is not None
        else stage == 3,
        **{name: target(zero.get(name)) for name in ("offload_optimizer", "offload_param")},
    }
    bf16 = config["bf16"] if config.get("bf16") is not None else config.get("bfloat16", {})
    for name, block in (("fp16", config.get("fp16") or {}), ("bf16", bf16)):
        shown[name] = {"enabled": block.get("enabled", False)}
    for name in ("optimizer", "scheduler"):
        if name in config:
            shown[name] = {
                "type": config[name].get("type"),
                "params": config[name].get("params"),
            }
    return shown


def target(block: Any) -> dict[str, Any] | None:
    return None if block is None else {"device": block.get("device", "none")}


def finite(value: Any) -> Any:
    """Return infinity as written in the rows."""
    if isinstance(value, dict):
        return {key: finite(child) for key, child in value.items()}
    return "inf" if value == float("inf") else value


def same_types(left: Any, right: Any) -> bool:
    """Return whether two values are equal and of the same type."""
    if isinstance(left, dict):
        return all(same_types(left[key], right[key]) for key in left)
    return type(left) is type(right)


PHRASES = {
    "Train batch size:": ("train_batch_size",),
    "Micro batch size per gpu:": ("train_micro_batch_size_per_gpu",),
    "Gradient accumulation steps:": ("gradient_accumulation_steps",),
    "Check batch related parameters": (
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
    ),
    "Either train_batch_size or": ("train_batch_size", "train_micro_batch_size_per_gpu"),
    "warmup_num_steps must be": ("scheduler.params.warmup_num_steps",),
    "invalid tag_validation": ("checkpoint.tag_validation",),
    "is not a supported DeepSpeed Optimizer": ("optimizer.type",),
    "does not recognize LR scheduler": ("scheduler.type",),
    "ZeRO optimization config": ("zero_optimization",),
    "fp16 modes cannot be": ("bf16.enabled", "fp16.enabled"),
    "when `fp16` is set": ("fp16.enabled",),
    "when `bf16` is set": ("bf16.enabled",),
    "requires you to pass at least one": ("train_micro_batch_size_per_gpu",),
    "At least one of the dataloaders": ("train_micro_batch_size_per_gpu",),
}
MODELS = {
    "DeepSpeedZeroConfig": "zero_optimization",
    "DeepSpeedFP16Config": "fp16",
    "DeepSpeedBF16Config": "bf16",
}


def named(error: str) -> set[str]:
    """Return the config keys named in an error message."""
    found = set(re.findall(r"^- ds ([\w.]+)=", error, re.MULTILINE))
    found |= set(re.findall(r"`([\w.]+)` not found in kwargs", error))
    listed = re.search(r"in the DeepSpeed config file: \[(.*?)\]", error)
    if listed:
        found |= set(re.findall(r"'([\w.]+)'", listed[1]))
    for phrase, paths in PHRASES.items():
        if phrase in error:
            found |= set(paths)
    model = re.match(r"ValidationError: \d+ validation errors? for (\w+)\n", error)
    if model:
        fields = re.findall(r"^([a-z]\w*(?:\.\w+)*)$", error, re.MULTILINE)
        found |= {f"{MODELS.get(model[1], model[1])}.{field}" for field in fields}
    return found
