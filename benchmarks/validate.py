"""Run time of ``dsconfig validate``, relative to its dependencies and to DeepSpeed.

    python benchmarks/validate.py [ROUNDS]

(a) the process on a typical file relative to importing pydantic and typer and, for several kinds of
    files, to constructing ``deepspeed.runtime.config.DeepSpeedConfig`` if DeepSpeed is installed;
(b) files per second over the corpus, in one process;
(c) time over file size up to 10 MB;
(d) the command on one folder of up to 10,000 files, in one process and in one per core.

Rounds are interleaved so that load affects all alike; medians are printed.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import dsconfig

Side = TypeVar("Side")

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "tests" / "oracle" / "corpus"
TYPICAL = "typical"
FILES = {
    TYPICAL: ROOT / "examples" / "classifier.json",
    "no finding": CORPUS / "0469.json",
    "ten mistakes": CORPUS / "0443.json",
    "HJSON": CORPUS / "0371.json",
}
BASE = "from pydantic import BaseModel; import typer"
DEEPSPEED = "from deepspeed.runtime.config import DeepSpeedConfig; DeepSpeedConfig({!r})"
SIZES = (0.1, 1.0, 10.0)
"""Megabytes."""
FOLDERS = (1000, 10_000)
"""Files per folder."""


PLAIN, OURS, THEIRS = "pydantic and typer", "dsconfig validate", "DeepSpeedConfig"


def processes() -> dict[tuple[str, str], list[str]]:
    """Return the command line of each side, by side and file."""
    python = sys.executable
    sides = {(PLAIN, ""): [python, "-c", BASE]}
    for name, file in FILES.items():
        sides[OURS, name] = [python, "-m", "dsconfig", "validate", str(file)]
        if find_spec("deepspeed"):
            sides[THEIRS, name] = [python, "-c", DEEPSPEED.format(str(file))]
    return sides


def interleaved(sides: Mapping[Side, Callable[[], object]], rounds: int) -> dict[Side, float]:
    """Return the median seconds of each side over interleaved rounds."""
    seconds: dict[Side, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, work in sides.items():
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def start_up(rounds: int) -> None:
    def runner(command: list[str]) -> Callable[[], object]:
        return lambda: subprocess.run(command, capture_output=True, cwd=ROOT)

    took = interleaved({side: runner(command) for side, command in processes().items()}, rounds)
    base, typical = took[PLAIN, ""], took[OURS, TYPICAL]
    print(f"process, median of {rounds} interleaved rounds")
    for (name, file), seconds in took.items():
        print(f"  {name:20} {file:13} {seconds * 1000:7.0f} ms")
    print(f"  dsconfig validate is {typical / base:.2f}x pydantic and typer (goal: at most 2x)")
    for file in FILES:
        if (THEIRS, file) in took:
            ratio = took[THEIRS, file] / took[OURS, file]
            print(f"  and {ratio:.1f}x faster than DeepSpeedConfig: {file} (goal: 10x)")


def throughput(rounds: int) -> None:
    files = sorted(CORPUS.glob("*.json"))

    def check_all() -> None:
        for file in files:
            dsconfig.validate(dsconfig.read(file))

    check_all()
    seconds = interleaved({"corpus": check_all}, rounds)["corpus"]
    rate = len(files) / seconds
    print(f"one process over {len(files)} public files: {rate:.0f} files/s (goal: 1000)")


def config_of(megabytes: float) -> str:
    """Return a config of about this size: a list of numbers under a comment key."""
    numbers = ",\n".join(str(number) for number in range(int(megabytes * 125_000)))
    return (
        f'{{"train_batch_size": 8, "_comment": [{numbers}], "zero_optimization": {{"stage": 2}}}}'
    )


def size(rounds: int) -> None:
    print("time over size")
    for megabytes in SIZES:
        text = config_of(megabytes) + "\n"

        def check(text: str = text) -> None:
            dsconfig.validate(dsconfig.read(text))

        seconds = interleaved({"size": check}, rounds)["size"]
        actual = len(text) / 1e6
        print(f"  {actual:6.2f} MB {seconds * 1000:8.0f} ms  {seconds * 1000 / actual:6.0f} ms/MB")


def folder() -> None:
    print("dsconfig validate on one folder, --jobs 1 and the default (goal: 10,000 files in 15 s)")
    for number in FOLDERS:
        with tempfile.TemporaryDirectory() as name:
            for index in range(number):
                Path(name, f"ds_config_{index:05}.json").write_text(json.dumps(variant(index)))
            for jobs in (["--jobs", "1"], []):
                command = [sys.executable, "-m", "dsconfig", "validate", name, "-q", *jobs]
                before, start = cpu_seconds(), time.perf_counter()
                subprocess.run(command, stdout=subprocess.DEVNULL, cwd=ROOT)
                seconds = time.perf_counter() - start
                print(
                    f"  {number:6} files {' '.join(jobs):8} {seconds:6.1f} s, "
                    f"{cpu_seconds() - before:6.1f} s CPU time"
                )


def cpu_seconds() -> float:
    """Return the CPU time of all child processes that have ended."""
    used = os.times()
    return used.children_user + used.children_system


def variant(index: int) -> dict[str, object]:
    """Return one of many similar configs; some have a mistake."""
    return {
        "train_micro_batch_size_per_gpu": (1, 2, 4, "auto")[index % 4],
        "gradient_accumulation_steps": (1, 8, "auto")[index % 3],
        "zero_optimization": {"stage": index // 3 % 4, "overlap_comm": True},
        "bf16": {"enabled": index % 5 > 0},
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4 * (index % 10 + 1)}},
    }


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    start_up(rounds)
    throughput(max(3, rounds // 3))
    size(max(3, rounds // 3))
    folder()


if __name__ == "__main__":
    main()
