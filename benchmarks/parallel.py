"""Sequence and tensor parallelism compared with hand-written torch and DeepSpeed, in one run.

    python benchmarks/parallel.py [--pairs 31] [--length 512] [--stages 1,2,3] [--only split]

Two ranks on gloo, one thread each, share every sample. Hand-written torch: the same model and
attention, with exchanges in an autograd function, and ``fully_shard`` over both ranks with the
engine's units; with split layers (``split``) ``parallelize_module`` over both ranks and
``fully_shard`` over one. A pair is one step of each mode, one after the other, in alternating
order. Printed: the median over pairs of dsengine's speed relative to the other's, and an interval
that contains it with 95 %. DeepSpeed changes torch for its whole process: its ranks are separate,
and it runs at stage 3, where its gradients are right, and at all stages with split layers. If it
fails, its error is printed.
"""

import argparse
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from math import comb
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tests")]

WARM, RANKS = 3, 2
_built: dict[str, tuple[Callable[[Any], None], Any]] = {}
"""Steps and parts of samples in a rank, by mode."""


def build(mode: str, length: int) -> None:
    """Build a mode and warm it up; called on every rank."""
    import torch
    import torch.distributed as dist
    from parallel_modes import MODES, VOCABULARY

    ids = torch.randint(VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))
    parts = [ids] * RANKS if "split" in mode else ids.chunk(RANKS, dim=1)
    _built[mode] = MODES[mode](), parts[dist.get_rank()].contiguous()
    for _ in range(WARM):
        step(mode)


def step(mode: str) -> float:
    """Return the seconds of one step; called on every rank."""
    import torch.distributed as dist

    train, part = _built[mode]
    dist.barrier()
    start = time.perf_counter()
    train(part)
    dist.barrier()
    return time.perf_counter() - start


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the order statistics that contain the median with at least 95 %, or the extremes."""
    ordered, count = sorted(ratios), len(ratios)
    outside, cut = 2 / 2**count, 0
    while cut + 1 < count // 2 and outside + 2 * comb(count, cut + 1) / 2**count <= 0.05:
        cut += 1
        outside += 2 * comb(count, cut) / 2**count
    return ordered[cut], ordered[count - 1 - cut]


def compared(mode: str, other: str, pairs: int, length: int, run: Callable[[str, str], Any]) -> str:
    """Return a line: the speed of ``mode`` relative to ``other``, or the error of one of them.

    ``run`` calls a function of this file by name for a mode.
    """
    ratios: list[float] = []
    try:
        for each in (mode, other):
            run("build", each)
        for number in range(pairs):
            order = (mode, other) if number % 2 == 0 else (other, mode)
            seconds = {each: run("step", each) for each in order}
            ratios.append(seconds[other] / seconds[mode])
    except RuntimeError as error:
        return f"{mode} / {other}: {str(error).strip().splitlines()[-1]}"
    low, high = interval(ratios)
    return (
        f"{mode} / {other}: {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f}), "
        f"{pairs} pairs, {length} tokens"
    )


def main() -> None:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from compiling import LONGEST, report_compilation

    from training.ranks import Ranks

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=31)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--stages", default="1,2,3")
    parser.add_argument("--only", choices=["split"])
    chosen: Any = parser.parse_args()
    stages = chosen.stages.split(",")
    pairs = [(f"dsengine {stage}", f"torch {stage}") for stage in stages]
    split = [(f"dsengine split {stage}", f"torch split {stage}") for stage in stages]
    if importlib.util.find_spec("deepspeed") is not None:
        pairs.append(("dsengine 3", "deepspeed 3"))
        split += [(f"dsengine split {stage}", f"deepspeed split {stage}") for stage in stages]
    else:
        print("deepspeed is not installed: not compared", file=sys.stderr)
    for mode, other in split if chosen.only == "split" else [*pairs, *split]:
        with Ranks(RANKS) as plain, Ranks(RANKS) as foreign, report_compilation():

            def run(job: str, each: str, plain: Any = plain, foreign: Any = foreign) -> Any:
                ranks = foreign if each.startswith("deepspeed") else plain
                length = {"length": chosen.length} if job == "build" else {}
                return ranks.run(f"parallel:{job}", seconds=LONGEST, mode=each, **length)[0]

            print(compared(mode, other, chosen.pairs, chosen.length, run), flush=True)


if __name__ == "__main__":
    main()
