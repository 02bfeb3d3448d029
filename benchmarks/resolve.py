"""Run time of ``dsconfig resolve``, as a command and as a library call.

    python benchmarks/resolve.py [ROUNDS]

(a) the process with all facts given, relative to importing pydantic and typer;
(b) resolutions per second in one process: with all facts given, and with a search by the estimator
    (stage, offload and micro batch "auto");
(c) the same from 1 to 65,536 GPUs: the run time must not depend on the world size.

Rounds are interleaved so that load affects all alike; medians are printed.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dsconfig
from dsconfig.facts import Facts, gather

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "examples" / "baichuan2.json"
SEARCHED = ROOT / "tests" / "resolver" / "configs" / "classifier_auto.json"
BASE = "from pydantic import BaseModel; import typer"
FLAGS = "--gpus 8 --device a100-80gb --model llama-2-13b --micro-batch 2 --global-batch 64"
WORLDS = (1, 8, 64, 512, 4096, 65_536)


def median_seconds(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each side over interleaved rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, work in sides.items():
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def whole_process(rounds: int) -> None:
    def runner(*arguments: str) -> Callable[[], object]:
        command = [sys.executable, *arguments]
        return lambda: subprocess.run(command, capture_output=True, cwd=ROOT, check=True)

    resolve = ("-m", "dsconfig", "resolve", str(CONFIG), *FLAGS.split())
    took = median_seconds(
        {
            "pydantic and typer": runner("-c", BASE),
            "resolve, table": runner(*resolve),
            "resolve, json": runner(*resolve, "--output-format", "json"),
        },
        rounds,
    )
    base = took["pydantic and typer"]
    print(f"process, median of {rounds} interleaved rounds (goal: at most 2.5x)")
    for name, seconds in took.items():
        print(f"  {name:20} {seconds * 1000:7.0f} ms  {seconds / base:.2f}x")


def facts_for(ranks: int, **more: Any) -> Facts:
    known: dict[str, Any] = {
        "gpus": ranks,
        "device": "a100-80gb",
        "model": "llama-2-13b",
        "global_batch": 64 * ranks,
        "seq_len": 2048,
        "learning_rate": 1e-4,
        "host_memory": "1TB",
    }
    return gather(**(known | more))


def in_process(rounds: int) -> None:
    given, searched = dsconfig.read(CONFIG), dsconfig.read(SEARCHED)
    all_given, open_batch = facts_for(8, micro_batch=2), facts_for(8)
    took = median_seconds(
        {
            "every fact given": lambda: dsconfig.resolve(given, all_given).effective,
            "stage and batch searched": lambda: dsconfig.resolve(searched, open_batch).effective,
        },
        rounds * 20,
    )
    print("in one process (goal: at least 500 a second)")
    for name, seconds in took.items():
        print(f"  {name:26} {1 / seconds:7.0f} a second")


def by_world_size(rounds: int) -> None:
    document, searched = dsconfig.read(CONFIG), dsconfig.read(SEARCHED)
    print("by world size, milliseconds")
    for ranks in WORLDS:
        all_given, open_batch = facts_for(ranks, micro_batch=2), facts_for(ranks)
        took = median_seconds(
            {
                "given": lambda f=all_given: dsconfig.resolve(document, f),
                "searched": lambda f=open_batch: dsconfig.resolve(searched, f),
            },
            rounds * 10,
        )
        row = "  ".join(f"{name} {seconds * 1000:6.2f}" for name, seconds in took.items())
        print(f"  {ranks:6} GPUs  {row}")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    whole_process(rounds)
    in_process(rounds)
    by_world_size(rounds)


if __name__ == "__main__":
    main()
