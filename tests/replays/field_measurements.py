"""Replay published figures of real runs: memory, whether it ran, seconds per step, orderings.

Each row has its config and the flags of ``dsconfig estimate``. A memory row agrees within 12 %, a
verdict when it is the same, a step within a factor of 1.5, an ordering when the faster one is.
``python -m replays.field_measurements PATH`` (with ``PYTHONPATH=tests``) prints every row.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import dsconfig
from dsconfig.cost.estimate import Option, Phase
from dsconfig.facts import Facts, gather
from dsconfig.facts.request import DECLARED, flag_of
from replays import Case

MEMORY_TOLERANCE = 0.12
TIME_TOLERANCE = 1.5
GIB = 2**30
Row = Mapping[str, Any]


def replay(path: Path) -> Iterator[Case]:
    oracle = json.loads(path.read_text())
    for row in oracle["rows"]:
        yield case(row)
    for row in oracle.get("orderings", ()):
        yield ordering(row)


def case(row: Row) -> Case:
    expected, got = published(row), predicted(row)
    if row["kind"] == "fits":
        return Case(row["id"], expected, got, expected == got)
    if row["kind"] == "time":
        agrees = max(got / expected, expected / got) <= TIME_TOLERANCE
    else:
        agrees = abs(got / expected - 1) <= MEMORY_TOLERANCE
    return Case(row["id"], round(expected, 2), round(got, 2), agrees)


def published(row: Row) -> Any:
    """Return the published figure: GiB, seconds per step, or whether it ran."""
    return row[{"memory": "measured_gib", "time": "seconds", "fits": "ran"}[row["kind"]]]


def predicted(row: Row) -> Any:
    """Return the estimate in the same unit."""
    facts = facts_of(row)
    option = option_of(row, facts)
    if row["kind"] == "time":
        assert option.step is not None
        return option.step.seconds
    if row["kind"] == "fits":
        return all(fit.fits for fit in option.fits)
    return read(option, row["read"]) / GIB


def read(option: Option, quantity: str) -> int:
    """Return the estimated bytes of a peak, the end of a phase, a component, or the host."""
    device = option.device
    name, _, rest = quantity.partition(":")
    if name == "rest":
        return device.end_bytes[Phase(rest)]
    if name == "parts":
        phase, _, part = rest.partition(":")
        return sum(
            component.bytes
            for component in device.components
            if component.name == part and Phase(phase) in component.phases
        )
    if name == "host-no-moments":
        # Growth after the parameters are partitioned.
        before = ("model as built", "shards as built")
        later = ("optimizer state", "optimizer temporaries")
        return sum(
            component.bytes
            for component in option.host.components
            if component.name not in before + later
        )
    return {
        "peak": device.peak_bytes,
        "reserved": device.reserved_bytes,
        "visible": device.visible_bytes,
        **{str(phase): count for phase, count in device.phase_bytes.items()},
    }[name]


def option_of(row: Row, facts: Facts) -> Option:
    version = row.get("deepspeed_version")
    resolution = dsconfig.resolve(row["config"], facts, runtime=row["runtime"], version=version)
    return dsconfig.estimate(resolution, facts).options[0]


def facts_of(row: Row) -> Facts:
    """Return the facts of the flags in a row, parsed as on the command line."""
    known = flags_of(row["flags"])
    arguments = row.get("training_args")
    if not row.get("model_config"):
        return gather(**known, training_args=arguments)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(row["model_config"]))
        return gather(**{**known, "model": path, "training_args": arguments})


def flags_of(flags: list[str]) -> dict[str, Any]:
    """Return the arguments of ``gather`` for flags."""
    facts: dict[str, Any] = {}
    named = {flag_of(name): (name, declared.kind) for name, declared in DECLARED.items()}
    arguments = iter(flags)
    for flag in arguments:
        name, kind = named[flag]
        facts[name] = True if kind is bool else kind(next(arguments))
    return facts


def _job(flags: str, *, runtime: str = "deepspeed", **row: Any) -> Row:
    return {"flags": flags.split(), "runtime": runtime, **row}


LLAMA = _job("--model llama-7b --gpus 8 --device a800 --seq-len 4096", batch=64)
LLAMA_3 = "--model llama-3-8b --gpus 4 --seq-len 512 --device"
BLOOM = "--model bloom-560m --gpus 2 --device-memory 24GiB --seq-len 512"
GEMMA = "--model gemma-2-2b --gpus 8 --device a100-80gb --seq-len 1000"
QWEN = "--model qwen2.5-1.5b --gpus 2 --device a100-40gb --seq-len 512"
LORA = "--model llama-2-7b --gpus 2 --device rtx-3090 --seq-len 2048 --trainable 143130624"
OFFLOADED = {"stage": 3, "optimizer": True, "param": True}
PAIRS: Mapping[str, tuple[Row, Row]] = {
    "stage 2 mb1 faster than stage 3 mb2, no recompute, NVLink": (
        {**LLAMA, "micro": 1, "zero": {"stage": 2}},
        {**LLAMA, "micro": 2, "zero": {"stage": 3}},
    ),
    "no recompute faster than recompute, stage 3": (
        {**LLAMA, "micro": 2, "zero": {"stage": 3}},
        {**LLAMA, "micro": 2, "zero": {"stage": 3}, "recompute": "full"},
    ),
    "stage 2 mb4 faster than mb1": (
        {**LLAMA, "micro": 4, "zero": {"stage": 2}, "recompute": "full"},
        {**LLAMA, "micro": 1, "zero": {"stage": 2}, "recompute": "full"},
    ),
    "stage 3 faster than stage 3 + offload": (
        {**LLAMA, "micro": 2, "zero": {"stage": 3}, "recompute": "full"},
        {**LLAMA, "micro": 2, "zero": {"stage": 3, "optimizer": True}, "recompute": "full"},
    ),
    "stage 1 faster than stage 2 (2 x TITAN RTX, PCIe)": (
        _job(BLOOM, batch=8, micro=1, zero={"stage": 1}, precision="fp16"),
        _job(BLOOM, batch=8, micro=1, zero={"stage": 2}, precision="fp16"),
    ),
    "DDP faster than ZeRO-2, NVLink, GA 1": (
        _job(GEMMA, batch=88, micro=11, zero={"stage": 0, "overlap_comm": False}),
        _job(GEMMA, batch=112, micro=14, zero={"stage": 2, "overlap_comm": False}),
    ),
    "ZeRO-2 faster than ZeRO-2 + offload": (
        _job(QWEN, batch=8, micro=4, zero={"stage": 2, "optimizer": False}),
        _job(QWEN, batch=8, micro=4, zero={"stage": 2, "optimizer": True}),
    ),
    "FSDP LoRA bs6 faster than bs1": (
        _job(LORA, runtime="dsengine", batch=12, micro=6, zero={"stage": 3}, recompute="full"),
        _job(LORA, runtime="dsengine", batch=2, micro=1, zero={"stage": 3}, recompute="full"),
    ),
    "A100 NVLink faster than L40S PCIe": (
        _job(f"{LLAMA_3} a100-40gb", batch=16, micro=1, zero=OFFLOADED, recompute="full"),
        _job(f"{LLAMA_3} l40s", batch=16, micro=1, zero=OFFLOADED, recompute="full"),
    ),
}
"""The faster and the slower job of each ordering, as published."""


def ordering(row: Row) -> Case:
    """Return whether the estimate has the same job ahead in samples per second."""
    got = ratio(row)
    return Case(row["id"], row["published_ratio"], round(got, 2), got > 1)


def ratio(row: Row) -> float:
    """Return the ratio of samples per second, first to second."""
    faster, slower = (_seconds_per_sample(job) for job in PAIRS[row["id"]])
    return slower / faster


def _seconds_per_sample(job: Row) -> float:
    settings = dict(job["zero"])
    zero = {"stage": settings["stage"], "overlap_comm": settings.get("overlap_comm", True)}
    for name in ("optimizer", "param"):
        if settings.get(name):
            zero[f"offload_{name}"] = {"device": "cpu", "pin_memory": True}
    row = {
        "config": {
            "train_batch_size": job["batch"],
            "train_micro_batch_size_per_gpu": job["micro"],
            "zero_optimization": zero,
            job.get("precision", "bf16"): {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        },
        "flags": [*job["flags"], "--recompute", job.get("recompute", "none")],
        "runtime": job["runtime"],
    }
    step = option_of(row, facts_of(row)).step
    assert step is not None
    return step.seconds / job["batch"]


HEAD, TAIL = "<!-- field measurements -->\n", "<!-- end of field measurements -->\n"
EXPLAIN_ABOVE = 0.10


def table(oracle: Mapping[str, Any], reasons: Mapping[str, str]) -> str:
    """Return the rows of the page: published figure, estimate, error and reason."""
    lines = ["| run | published | estimate | error | reason of the difference, unpublished facts |"]
    lines.append("|---|---|---|---|---|")
    for row in oracle["rows"]:
        expected, got = published(row), predicted(row)
        if row["kind"] == "fits":
            shown = ("ran" if expected else "out of memory", "fits" if got else "does not fit")
            error = "" if expected == got else "wrong"
        else:
            unit = "s" if row["kind"] == "time" else "GiB"
            shown = (f"{expected:.4g} {unit}", f"{got:.4g} {unit}")
            error = f"{got / expected - 1:+.1%}"
        label = name_of(row)
        reason = reasons.get(label, "") or "; ".join(row.get("missing", ()))
        has_link = row["source"].startswith("https://") and " " not in row["source"]
        name = f"[{label}]({row['source']})" if has_link else label
        lines.append(f"| {name} | {shown[0]} | {shown[1]} | {error} | {reason} |")
    for row in oracle.get("orderings", ()):
        got = ratio(row)
        wrong = "" if got > 1 else "reversed"
        reason = reasons.get(row["id"], "")
        cells = f"{row['published_ratio']} x", f"{got:.3f} x", wrong, reason
        lines.append(f"| {row['id']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def name_of(row: Row) -> str:
    """Return the unique label of a row; some runs published both memory and speed."""
    return f"{row['id']}, a step" if row["kind"] == "time" else row["id"]


def reasons_of(page: str) -> dict[str, str]:
    """Return the last column of the table on a page, by row."""
    reasons: dict[str, str] = {}
    for line in page.partition(HEAD)[2].partition(TAIL)[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5:
            reasons[cells[0].partition("](")[0].removeprefix("[")] = cells[4]
    return reasons


def write_page(oracle: Mapping[str, Any], page: Path) -> None:
    """Write the table to the page, keeping its reasons."""
    text = page.read_text()
    before, _, rest = text.partition(HEAD)
    after = rest.partition(TAIL)[2]
    page.write_text(before + HEAD + table(oracle, reasons_of(text)) + TAIL + after)


def errors(oracle: Mapping[str, Any], kind: str, *, only_complete: bool = False) -> list[float]:
    """Return |log(estimate / published)|; ``only_complete`` skips rows with unpublished inputs."""
    return [
        abs(math.log(predicted(row) / published(row)))
        for row in oracle["rows"]
        if row["kind"] == kind and (row.get("usable", True) or not only_complete)
    ]


def main() -> None:
    """Print every row; with a second path, write the table to that page."""
    oracle = json.loads(Path(sys.argv[1]).read_text())
    if len(sys.argv) > 2:
        write_page(oracle, Path(sys.argv[2]))
    print(table(oracle, {}))
    for label, factors in (
        ("memory, all inputs published", errors(oracle, "memory", only_complete=True)),
        ("memory, all rows", errors(oracle, "memory")),
        ("steps", errors(oracle, "time")),
    ):
        print(f"{label}: {len(factors)} rows, typical factor {math.exp(median(factors)):.3f}")
    verdicts = [case(row) for row in oracle["rows"] if row["kind"] == "fits"]
    print(f"verdicts: {sum(verdict.agrees for verdict in verdicts)} of {len(verdicts)}")


if __name__ == "__main__":
    main()
