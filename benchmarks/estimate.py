"""Run time of `dsconfig estimate` as a process, relative to importing pydantic and typer.

    python benchmarks/estimate.py

Runs are interleaved so that load affects all alike; medians of 9. Goals: 2.5 times the baseline for
an estimate, one second for the search over choices.
"""

import os
import subprocess
import sys
import time
from statistics import median

ROUNDS = 9
CONFIG = """{
    "train_micro_batch_size_per_gpu": 8,
    "bf16": {"enabled": true},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
    "zero_optimization": {"stage": 1, "overlap_comm": true}
}"""
DEPTH = ["--model", "llama-2-13b", "--gpus", "8", "--seq-len", "4096"]
DSCONFIG = [sys.executable, "-m", "dsconfig"]
RUNS = {
    "pydantic and typer": [sys.executable, "-c", "from pydantic import BaseModel; import typer"],
    "estimate, table": [*DSCONFIG, "estimate", "--params", "13e9", "--gpus", "8"],
    "estimate, JSON": [
        *DSCONFIG, "estimate", "--params", "13e9", "--gpus", "8", "--output-format", "json",
    ],
    "one config that fits": [
        *DSCONFIG, "estimate", CONFIG, "--set", "zero_optimization.stage=3",
        "--recompute", "full", *DEPTH, "--device", "h200",
    ],
    "one config that does not": [*DSCONFIG, "estimate", CONFIG, *DEPTH, "--device", "a100-40gb"],
    "1e12 on 4,096 GPUs": [
        *DSCONFIG, "estimate", "--params", "1e12", "--gpus", "4096", "--seq-len", "4096",
    ],
    "tune": [
        *DSCONFIG, "tune", "--model", "llama-2-13b", "--gpus", "8", "--device", "a100-80gb",
        "--seq-len", "4096",
    ],
}  # fmt: skip


def measure(command: list[str]) -> tuple[float, int]:
    """Return (seconds, peak resident bytes) of one run."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} failed")
    return time.perf_counter() - started, usage.ru_maxrss * 1024


def main() -> None:
    seconds: dict[str, list[float]] = {name: [] for name in RUNS}
    peaks = dict.fromkeys(RUNS, 0)
    for _ in range(ROUNDS):
        for name, command in RUNS.items():
            took, peak = measure(command)
            seconds[name].append(took)
            peaks[name] = max(peaks[name], peak)
    base = median(seconds["pydantic and typer"])
    for name, each in seconds.items():
        middle = median(each)
        print(
            f"{name:25} {middle * 1000:6.0f} ms {middle / base:5.2f} x {peaks[name] / 1e6:5.0f} MB"
        )


if __name__ == "__main__":
    main()
