"""Write docs/internals/gpu.md from the measurements, if there are any."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpu.cases import Row

NOT_YET = "**Nothing has been measured on a GPU yet.**"
PARTS = {
    "training": (
        "Training",
        "The engine on a GPU compared with the engine on the host: largest relative difference of "
        "the losses. Then test files with their ranks on the GPU: how many tests passed or were "
        "skipped, and which failed.",
    ),
    "dry_run": (
        "Dry run and measurement",
        "Peak bytes by phase: measured by torch's allocator on the GPU, then reported by "
        "`dsengine.simulate`. The dry run includes offloaded states, the measurement does not.",
    ),
    "copies": (
        "Pinned memory and copies",
        "One step of an offloaded optimizer: pinned tensors, seconds of the step, of the updates "
        "and of the copies to the GPU, and the share of the copies that overlaps updates.",
    ),
    "speed": (
        "Speed",
        "Tokens per second over all ranks, peak bytes of one rank, and model FLOPs utilization "
        "(MFU) relative to the GPU's 16-bit peak.",
    ),
}


def page(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page from the records by part."""
    lines = [
        "# Measurements on a GPU",
        "",
        "`make gpu` runs the measurements that need one or more NVIDIA GPUs, in at most 40 "
        "minutes, and writes this page. A part that was measured for this commit and GPU is not "
        "measured again. Every part also runs on the host, in a tiny setting "
        "(`tests/gpu/test_gpu.py`).",
        "",
    ]
    if not any(name in records for name in PARTS):
        lines += [f"{NOT_YET} This page will have these parts:", ""]
        lines += [f"- **{title}.** {words}" for title, words in PARTS.values()]
    for name, (title, words) in PARTS.items():
        if name in records:
            lines += _part(title, words, records[name])
    return "\n".join(lines).rstrip() + "\n"


def _part(title: str, words: str, record: Mapping[str, Any]) -> list[str]:
    gpus = f"{record['gpus']} x {record['gpu']}"
    measured = f"Measured on {gpus}, {record['date']}, commit `{record['commit']}`"
    return [
        f"## {title}",
        "",
        words,
        "",
        f"{measured}, in {record['seconds']} s.",
        *_tables(record["rows"]),
        "",
    ]


def _tables(rows: Sequence[Row]) -> list[str]:
    """Return a table for each kind of row, failed ones last."""
    kinds: dict[tuple[str, ...], list[Row]] = {}
    for row in sorted(rows, key=lambda row: "failed" in row):
        kinds.setdefault(tuple(row), []).append(row)
    lines = []
    for columns, members in kinds.items():
        lines += ["", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        lines += [f"| {' | '.join(_cell(row[column]) for column in columns)} |" for row in members]
    return lines


def _cell(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, list):
        return ", ".join(_cell(item) for item in value) or "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value).replace("|", "\\|")
