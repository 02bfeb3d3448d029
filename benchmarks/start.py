"""What it takes to begin: imports and ``initialize`` of a small model, beside the alternatives.

    python benchmarks/start.py [--rounds 7] [--only transformers]

Each case is a fresh process on the CPU, one rank, whose seconds, of processor time and by the
clock, are counted from after ``import torch`` until the model can train; where the case names
transformers, from the start until it and the package are imported. Rounds are interleaved, and
figures are medians. ``by hand`` is torch's fully_shard and AdamW alone.
Bytecode is compiled beforehand, as an installation does.
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
    "fully_shard by hand": (
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
    """Seconds of one fresh process, of the processor and by the clock.

    Raises RuntimeError when it failed.
    """
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
    """Measure what is installed, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="of the cases, those with this word")
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
            if index:  # the first fills the caches of the file system
                taken[case].append(value)
    for case, values in taken.items():
        processor, clock = map(statistics.median, zip(*values, strict=True))
        print(f"{case:28} {processor:6.2f} s of processor time, {clock:6.2f} s by the clock")
    if missing:
        print(f"not installed: {', '.join(missing)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
