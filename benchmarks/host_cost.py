"""Host time per step of many small blocks: the engine, DDP, fully_shard and DeepSpeed, in one run.

    python benchmarks/host_cost.py [--rounds 15] [--ranks 1] [--compiled] [--modes 'ddp ...,...']

24 blocks, 293 tensors, bf16, so little computation that the host bounds the step, as it does on a
GPU. Measured: CPU time of the thread that trains, and wall time. Each round trains every mode for
a few steps. Printed: medians over the rounds of milliseconds per step and of the ratio to DDP in
the same round, and an interval that contains the latter with 95 %. One rank issues no collectives;
several use gloo with torch's collectives, as on NCCL, instead of direct exchange.
"""

import argparse
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tests")]

WARM, STEPS = 3, 5
MODEL: dict[str, Any] = {
    "dim": 32,
    "layers": 24,
    "heads": 2,
    "vocabulary": 64,
    "context": 8,
    "micro_batch": 1,
}
DDP = "ddp fused bf16"
MODES = (
    DDP,
    *(f"dsengine {stage} bf16" for stage in range(4)),
    "fully_shard bf16",
    *(f"deepspeed {stage} bf16" for stage in range(4)),
)
_built: dict[str, tuple[Callable[[Any], None], Any]] = {}
"""Step and batch of each mode in a rank."""


class Cost(NamedTuple):
    """Milliseconds per step: CPU time of the training thread, and wall time."""

    cpu: float
    wall: float


def build(mode: str, compiled: bool) -> None:
    """Build a mode and warm it up; called on every rank."""
    import torch.distributed as dist
    from engine_modes import MODES as BUILDERS
    from engine_modes import Workload

    from training.collective_jobs import collectives_only

    work = Workload(**MODEL, compiled=compiled)
    is_ours = mode.startswith("dsengine") and dist.get_world_size() > 1
    with collectives_only() if is_ours else nullcontext():
        step, _ = BUILDERS[mode](work)
        _built[mode] = step, work.batch(seed=dist.get_rank())
        measure(mode, WARM)


def measure(mode: str, steps: int = STEPS) -> Cost:
    """Train and return the cost of a step; called on every rank."""
    import torch.distributed as dist

    step, batch = _built[mode]
    dist.barrier()
    cpu, wall = time.thread_time(), time.perf_counter()
    for _ in range(steps):
        step(batch)
    cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
    return Cost(cpu * 1e3 / steps, wall * 1e3 / steps)


def table(costs: Mapping[str, Sequence[Cost]]) -> list[str]:
    """Return the medians, and ratios to the first mode, of each mode."""
    from parallel import interval

    baseline = next(iter(costs.values()))
    lines = [f"{'mode':18} {'CPU ms':>8} {'/ DDP':>6} {'95 %':>14} {'wall ms':>8} {'/ DDP':>6}"]
    for mode, rounds in costs.items():
        pairs = list(zip(rounds, baseline, strict=True))
        ratios = [own.cpu / other.cpu for own, other in pairs]
        low, high = interval(ratios)
        lines.append(
            f"{mode:18} {statistics.median(cost.cpu for cost in rounds):8.1f} "
            f"{statistics.median(ratios):6.2f} {low:6.2f} to {high:4.2f} "
            f"{statistics.median(cost.wall for cost in rounds):8.1f} "
            f"{statistics.median(own.wall / other.wall for own, other in pairs):6.2f}"
        )
    return lines


def main() -> None:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from compiling import LONGEST, report_compilation

    from training.ranks import Ranks

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--compiled", action="store_true", help="compile the model's forward")
    parser.add_argument("--modes", default=",".join(MODES), help="the first is the baseline")
    chosen: Any = parser.parse_args()
    modes = [mode.strip() for mode in chosen.modes.split(",")]
    if importlib.util.find_spec("deepspeed") is None:
        modes = [mode for mode in modes if not mode.startswith("deepspeed")]
        print("deepspeed is not installed: skipping its modes", file=sys.stderr)
    costs: dict[str, list[Cost]] = {mode: [] for mode in modes}
    with Ranks(chosen.ranks) as plain, Ranks(chosen.ranks) as foreign, report_compilation():

        def run(job: str, mode: str, **arguments: Any) -> list[Any]:
            ranks = foreign if mode.startswith("deepspeed") else plain  # it changes torch
            return ranks.run(f"host_cost:{job}", seconds=LONGEST, mode=mode, **arguments)

        for mode in modes:
            run("build", mode, compiled=chosen.compiled)
        for number in range(chosen.rounds):
            for mode in modes:
                costs[mode].append(run("measure", mode)[0])
            print(f"round {number + 1} of {chosen.rounds}", file=sys.stderr, flush=True)
    print("\n".join(table(costs)))


if __name__ == "__main__":
    main()
