"""Each change that ``estimate`` lists, made literally, is accepted by the program and fits."""

import re
from typing import Any

import pytest

import dsconfig
from dsconfig.cost.estimator import estimate_option
from dsconfig.cost.fit import verdict_on
from dsconfig.cost.remedies import Change
from dsconfig.facts import Facts
from dsconfig.facts.gathering import gather
from dsconfig.project.accepted_changes import cheapest_changes
from dsconfig.project.changes import changed
from dsconfig.runtimes.base import Instruction, Runtime, runtime_of
from dsconfig.source import Document, read
from narrowing import not_none
from sweeps import sweep

OPEN = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
BATCHES: dict[str, dict[str, Any]] = {
    "open": {**OPEN, "train_batch_size": "auto"},
    "without total": OPEN,
    "fixed": {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2},
    "all fixed": {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
    },
}
ZERO: dict[str, dict[str, Any]] = {
    "stage 0": {"stage": 0},
    "stage 2": {"stage": 2, "allgather_bucket_size": 2e8},
    "stage 3": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
}
WORLDS: dict[str, dict[str, Any]] = {
    "long": {"model": "qwen3-4b", "device": "a100-80gb", "seq_len": 131072},
    "longer": {"model": "qwen3-4b", "device": "h100", "seq_len": 262144, "recompute": "full"},
    "large": {"model": "llama-3-70b", "device": "a100-80gb", "seq_len": 4096},
    "small card": {"model": "llama-3-8b", "device": "rtx-4090", "seq_len": 4096, "nvme": "/data"},
    "experts": {"model": "mixtral-8x7b", "device": "a100-40gb", "seq_len": 8192},
    "adapters": {
        "model": "llama-2-70b",
        "device": "rtx-4090",
        "seq_len": 4096,
        "lora_rank": 16,
        "base_weights": "4bit",
    },
    "two nodes": {"model": "llama-2-13b", "device": "v100-32gb", "seq_len": 2048, "nodes": 2},
}
ARGUMENTS = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "bf16": True}
PATTERNS: dict[str, tuple[str, Any]] = {
    r"batch_size=(\d+)\)": ("micro_batch", int),
    r"Accelerator\(gradient_accumulation_steps=(\d+)\)": ("accumulation", int),
    r"sequence_parallel_size=(\d+)": ("sequence_parallel", int),
    r"sp_size[=:] ?(\d+)": ("sequence_parallel", int),
    r"num_stages=(\d+)": ("pipeline_parallel", int),
    r"LoraConfig\(r=(\d+)": ("lora_rank", int),
    r"load_in_(4bit)": ("base_weights", str),
    r"model.gradient_checkpointing_enable\(\)$": ("recompute", lambda _: "full"),
    r"every_other_product": ("recompute", lambda _: "selective"),
    r"LigerFusedLinearCrossEntropyLoss": ("loss", lambda _: "fused-linear"),
}
"""What a step in the script says, as an argument of the next estimate."""


LOADER = "UlyssesSPDataLoaderAdapter(...)"
"""Of dsengine, which reads the degree from the config."""


def facts_of(name: str, world: str, steps: tuple[Instruction, ...] = ()) -> Facts:
    """Return the facts of a run after steps outside the config."""
    stated: dict[str, Any] = {"gpus": 8, **WORLDS[world]}
    arguments: dict[str, Any] = dict(ARGUMENTS)
    if name != "transformers":
        stated |= {"micro_batch": 2, "accumulation": 2, "precision": "bf16"}
    for step in steps:
        assigned = re.fullmatch(r"(\w+)=(\d+|True)", step.text)
        if assigned:
            arguments[assigned[1]] = eval(assigned[2])
            continue
        found = [
            (argument, of_text(match[match.lastindex or 0]))
            for pattern, (argument, of_text) in PATTERNS.items()
            if (match := re.search(pattern, step.text))
        ]
        if step.where == "the config":
            numbers = dict(re.findall(r"^(\w+) = (\d+)$", step.text))
            sizes = {
                "train_micro_batch_size_per_gpu": "micro_batch",
                "gradient_accumulation_steps": "accumulation",
            }
            if name != "transformers":
                stated |= {sizes[key]: int(at) for key, at in numbers.items() if key in sizes}
            continue
        assert found or step.text == LOADER, step
        stated |= dict(found)
    if name == "transformers":
        stated["training_args"] = arguments
    return gather(**stated)


def advice(
    name: str, batch: str, zero: str, world: str
) -> tuple[Runtime, Document, tuple[Change, ...]]:
    runtime, facts = runtime_of(name), facts_of(name, world)
    config = {**BATCHES[batch], "bf16": {"enabled": True}, "zero_optimization": ZERO[zero]}
    document = read(config)
    resolution = dsconfig.resolve(document, facts, runtime=runtime)
    effective = not_none(resolution.derive())
    return runtime, document, cheapest_changes(effective, facts, runtime, document, count=20)


@sweep(
    2,
    name=["transformers", "accelerate", "deepspeed", "dsengine"],
    batch=[*BATCHES],
    zero=[*ZERO],
    world=[*WORLDS],
)
def test_listed_change_is_accepted_and_fits(name: str, batch: str, zero: str, world: str) -> None:
    if name == "deepspeed" and "auto" in BATCHES[batch].values():
        pytest.skip("DeepSpeed refuses the file")
    runtime, document, found = advice(name, batch, zero, world)
    before = dsconfig.validate(document, facts_of(name, world), runtime=runtime)
    known = {(each.code, each.pointer) for each in before.refusals}
    for change in found:
        after = changed(change, runtime, document)
        facts = facts_of(name, world, runtime.instructions(change.edits, document.value))
        refused = dsconfig.validate(after, facts, runtime=runtime).refusals
        assert {(each.code, each.pointer) for each in refused} <= known, (change.what, refused)
        effective = not_none(dsconfig.resolve(after, facts, runtime=runtime).derive())
        option = estimate_option(effective, facts, runtime=runtime)
        if change.fits:
            assert verdict_on(option, effective, facts).fits, change.what
        assert option.device.needed_bytes == change.option.device.needed_bytes, change.what
