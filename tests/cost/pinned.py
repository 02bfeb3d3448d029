"""Estimates of many jobs, to the byte, so that changes are deliberate and reviewed.

    PYTHONPATH=tests python -m cost.pinned   writes them anew

Other tests compare with measurements, within percents; this one detects any change.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dsconfig
from dsconfig.cost.step_time import step_time
from dsconfig.facts import gather
from dsconfig.runtimes.deepspeed import deepspeed

FILE = Path(__file__).with_name("pinned.json")
CPU, NVME = {"device": "cpu"}, {"device": "nvme", "nvme_path": "/local"}
SMALL: dict[str, Any] = {"gpus": 4, "model": "gpt2", "device": "t4", "seq_len": 1024}
LARGE: dict[str, Any] = {
    "gpus": 16,
    "nodes": 2,
    "model": "llama-2-7b",
    "device": "a100-80gb",
    "seq_len": 2048,
}
COUNTED: dict[str, Any] = {"gpus": 8, "params": "3e9", "device_memory": "40GB"}
TIERS: list[dict[str, Any]] = [
    {},
    {"offload_optimizer": CPU},
    {"offload_optimizer": NVME, "offload_param": CPU},
    {"offload_optimizer": {**CPU, "ratio": 0.3}, "offload_param": NVME},
]
ZERO: list[dict[str, Any]] = [
    {"overlap_comm": True, "reduce_bucket_size": 30_000_000},
    {"contiguous_gradients": False, "allgather_bucket_size": 40_000_000},
    {"stage3_max_live_parameters": 10_000_000, "stage3_prefetch_bucket_size": 1_000_000},
    {"stage3_param_persistence_threshold": 5_000_000, "sub_group_size": 20_000_000},
    {"zero_hpz_partition_size": 2, "zero_quantized_weights": True},
    {"zero_quantized_gradients": True},
]
OPTIMIZERS = ("AdamW", "SGD", "Adagrad", "Lion", "Muon", "Adafactor")
PRECISIONS: list[dict[str, Any]] = [
    {},
    {"bf16": {"enabled": True}},
    {"fp16": {"enabled": True}},
    {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}},
]
ARGUMENTS: list[dict[str, Any]] = [
    {"gradient_checkpointing": True},
    {"use_liger_kernel": True},
    {"attn_implementation": "eager"},
    {"torch_compile": True},
]


def jobs() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Config and facts, both as a user writes them."""
    for facts, stage, tiers in itertools.product((SMALL, LARGE, COUNTED), range(4), TIERS):
        if (tiers and stage == 0) or ("offload_param" in tiers and stage < 3):
            continue
        yield config({"stage": stage, **tiers}), facts
    for facts, stage, more in itertools.product((SMALL, LARGE), (2, 3), ZERO):
        yield config({"stage": stage, **more}), facts
    for stage, kind in itertools.product((0, 1, 3), OPTIMIZERS):
        params = {"lr": 1e-3}
        yield config({"stage": stage}, optimizer={"type": kind, "params": params}), SMALL
    for stage, precision, steps in itertools.product((0, 1, 2, 3), PRECISIONS, (1, 3)):
        yield config({"stage": stage}, precision, gradient_accumulation_steps=steps), SMALL
    for arguments, stage in itertools.product(ARGUMENTS, (1, 3)):
        given = {"per_device_train_batch_size": 2, **arguments}
        yield config({"stage": stage}), {**LARGE, "training_args": given}
    for degree in ("tensor_parallel", "sequence_parallel", "pipeline_parallel"):
        yield config({"stage": 1}), {**LARGE, degree: 2}


def config(
    zero: dict[str, Any], precision: dict[str, Any] = PRECISIONS[1], **more: Any
) -> dict[str, Any]:
    optimizer = {"type": "AdamW", "params": {"lr": 1e-3}}
    base = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": zero}
    return {**base, "optimizer": optimizer, **precision, **more}


def figures() -> dict[str, Any]:
    """By runtime, config and facts: bytes by phase, on the host and on disk, and seconds."""
    found: dict[str, Any] = {}
    for (settings, facts), runtime in itertools.product(jobs(), ("dsengine", "deepspeed")):
        name = json.dumps([runtime, settings, {**facts}], separators=(",", ":"))
        found[name] = _estimated(settings, facts, runtime)
    return found


STEP = ("compute", "communication", "offload", "samples")


def _estimated(settings: dict[str, Any], given: dict[str, Any], runtime: str) -> Any:
    facts = gather(**given)
    chosen = deepspeed() if runtime == "deepspeed" else "dsengine"
    resolution = dsconfig.resolve(settings, facts, runtime=chosen)
    if not resolution.ok:
        return [each.code for each in resolution.refusals]
    option = dsconfig.estimate(resolution, facts).options[0]
    effective = resolution.effective
    assert effective is not None
    step = step_time(effective, facts) if effective.batch else None
    return {
        "device": list(option.device.phase_bytes.values()),
        "reserved": option.device.reserved_bytes,
        "host": option.host.bytes,
        "pinned": option.host.pinned_bytes,
        "nvme": option.nvme.bytes,
        "step": [float(f"{getattr(step, name):.6g}") for name in STEP] if step else [],
    }


if __name__ == "__main__":
    rows = (f"{json.dumps(name)}:{json.dumps(row)}" for name, row in figures().items())
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
