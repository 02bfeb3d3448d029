"""Published memory figures: the ZeRO paper's table and measured runs.

``kind: formula``: the ZeRO paper's table, equal to the printed digits. ``kind: measurement``
and ``usable``: within 12 %. Other rows are not predictable, for the reason in ``missing``: they
are listed in docs/internals/memory-validation.md and skipped here.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dsconfig
from dsconfig.cost import compat
from dsconfig.facts import catalogue, named_model, parameter_count
from replays import Case

TOLERANCE = 0.12
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Script:
    """Settings from the publisher's script, if published with the figures."""

    deepspeed: str
    zero: Mapping[str, Any]
    arguments: Mapping[str, Any]


SCRIPTS = {
    # benchmark.py in that folder: full 16-bit weights from from_pretrained are passed to
    # deepspeed.initialize, and max_memory_reserved includes them.
    "stas00/ml-engineering insights/when-to-upgrade-gpus/README.md": Script(
        deepspeed="0.19.2",
        zero={"overlap_comm": True, "contiguous_gradients": True},
        arguments={"zero_init": False, "dtype": "bfloat16"},
    )
}


def replay(path: Path) -> Iterator[Case]:
    for index, row in enumerate(json.loads(path.read_text())["rows"]):
        if row["kind"] == "formula":
            yield _formula(f"rows[{index}] {row['model']}", row)
        elif row["usable"]:
            error = predicted(row) / measured(row) - 1
            label = f"rows[{index}] {row['model']} on {row['gpus']}"
            got = f"{predicted(row) / 2**30:.1f} GiB ({error:+.1%})"
            agrees = abs(error) <= TOLERANCE
            yield Case(label, f"{row['measured_gb']} {row['unit']}", got, agrees)


def _formula(name: str, row: Row) -> Case:
    got = compat.paper_states(row["params"], row["gpus"], row["zero_stage"]) / 1e9
    printed = row.get("exact_formula_gb", row["measured_gb"])
    digits = len(str(printed).partition(".")[2])
    return Case(name, printed, round(got, digits), abs(got - printed) <= 0.5001 * 10**-digits)


def measured(row: Row) -> float:
    """Return the published figure in bytes."""
    return row["measured_gb"] * (2**30 if "GiB" in row["unit"] else 1e9)


def model_of(row: Row) -> dsconfig.ModelTree:
    """Return the catalogue's model with this parameter count, else one of that size."""
    for entry in catalogue.models():
        if entry["params"] == row["params"]:
            return named_model.model(entry["name"])
    return parameter_count.model(row["params"])


def predicted(row: Row) -> float:
    """Return the estimated bytes for the published quantity (allocated, reserved, nvidia-smi)."""
    facts = dsconfig.Facts(
        world_size=row["gpus"],
        nodes=max(1, row["gpus"] // 8),
        model=model_of(row),
        device=dsconfig.DeviceFacts(name=str(row.get("gpu_type")), compute_capability="9.0"),
        training=dsconfig.TrainingFacts(sequence_length=row["seq"], arguments=_style(row)),
    )
    runtime = "dsengine" if "FSDP" in (row.get("framework") or "") else "deepspeed"
    script = SCRIPTS.get(row["source"])
    version = script.deepspeed if script else "0.19.8"
    resolution = dsconfig.resolve(_config(row), facts, runtime=runtime, version=version)
    device = dsconfig.estimate(resolution, facts).options[0].device
    if "reserved" in row["what"]:
        return device.reserved_bytes
    return device.visible_bytes if "smi" in row["what"] else device.peak_bytes


def _config(row: Row) -> dict[str, Any]:
    script = SCRIPTS.get(row["source"])
    zero: dict[str, Any] = {"stage": row["zero_stage"] or 0, **(script.zero if script else {})}
    for key in ("optimizer", "param"):
        if key in (row.get("offload") or ""):
            zero[f"offload_{key}"] = {"device": "cpu", "pin_memory": True}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": row["batch"],
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        "zero_optimization": zero,
    }
    precision = next((n for n in ("bf16", "fp16", "fp32") if n in (row["precision"] or "")), "bf16")
    if precision != "fp32":
        config[precision] = {"enabled": True}
    return config


def _style(row: Row) -> dict[str, Any]:
    settings = f"{row.get('note')} {row.get('config')}".lower()
    checkpointing = row["activation_ckpt"]
    script = SCRIPTS.get(row["source"])
    return {
        **(script.arguments if script else {}),
        "gradient_checkpointing": checkpointing
        if isinstance(checkpointing, str)
        else bool(checkpointing),
        "use_liger_kernel": "liger" in settings,
        "torch_compile": "torch.compile" in settings,
    }
