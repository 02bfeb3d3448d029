"""Startup time: imports and ``initialize`` of a small model, compared with the alternatives.

    python benchmarks/start.py [--rounds 7] [--only transformers]

Each case is a new process on the CPU with one rank. CPU and wall-clock seconds are measured from
``import torch`` until the model can train or, for cases that name transformers, from process start
until the imports are done. Rounds are interleaved; results are medians. ``plain`` is torch's
fully_shard and AdamW only. Bytecode is compiled beforehand, as in an installation.
"""

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
from compileall import compile_dir
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODEL = """
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1")
os.environ["MASTER_PORT"] = port
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
"""
CONFIG = """
config = {"train_batch_size": 1, "zero_optimization": {"stage": 3}, "zero_allow_untested_optimizer":
    True, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}}
"""
CASES = {
    "plain fully_shard": (
        "import torch",
        MODEL
        + """
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
for layer in model: fully_shard(layer)
fully_shard(model)
torch.optim.AdamW(model.parameters(), lr=1e-3)
""",
    ),
    "dsengine": (
        "import torch",
        MODEL + CONFIG + "import dsengine\ndsengine.initialize(model=model, config=config)",
    ),
    "deepspeed": (
        "import torch",
        MODEL + CONFIG + "import deepspeed\ndeepspeed.initialize(model=model, config=config)",
    ),
    "transformers, as_deepspeed": (
        "",
        "import dsengine.as_deepspeed\nTRAINER\nimport deepspeed\ndeepspeed.initialize",
    ),
    "transformers, deepspeed": ("", "TRAINER\nimport deepspeed"),
    "transformers alone": ("", "TRAINER"),
}
TRAINER = "from transformers import Trainer, TrainingArguments"
MEASURE = """
import os, sys, time
port = sys.argv[1]
{before}
start, begun = time.process_time(), time.perf_counter()
{timed}
print("seconds", time.process_time() - start, time.perf_counter() - begun)
os._exit(0)
"""


def seconds(case: str, port: int) -> tuple[float, float]:
    """Return CPU and wall-clock seconds of one new process. Raises RuntimeError if it fails."""
    before, timed = CASES[case]
    code = MEASURE.format(before=before, timed=timed.replace("TRAINER", TRAINER))
    paths = os.pathsep.join([str(ROOT), str(ROOT / "engine")])
    settings = {"PYTHONPATH": paths, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", code, str(port)]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("seconds "):
            _, processor, clock = line.split()
            return float(processor), float(clock)
    raise RuntimeError(f"{case}: {done.stderr[-2000:]}")


def main() -> int:
    """Measure the installed programs and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="run only cases that contain this word")
    given = parser.parse_args()
    for folder in (ROOT / "dsconfig", ROOT / "engine" / "dsengine"):
        compile_dir(folder, quiet=1)
    missing = [each for each in ("deepspeed", "transformers") if not importlib.util.find_spec(each)]
    cases = [
        case
        for case in CASES
        if given.only in case and not any(each in case.split(", ") for each in missing)
    ]
    taken: dict[str, list[tuple[float, float]]] = {case: [] for case in cases}
    for index in range(given.rounds + 1):
        for place, case in enumerate(cases):
            value = seconds(case, 29600 + (index * len(cases) + place) % 300)
            if index:  # the first round fills the file system cache
                taken[case].append(value)
    for case, values in taken.items():
        processor, clock = map(statistics.median, zip(*values, strict=True))
        print(f"{case:28} {processor:6.2f} s CPU time, {clock:6.2f} s wall-clock time")
    if missing:
        print(f"not installed: {', '.join(missing)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
