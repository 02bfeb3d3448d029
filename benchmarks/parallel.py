"""Sequence parallelism compared with hand-written torch and DeepSpeed, in one run.

    python benchmarks/parallel.py [--pairs 9] [--length 512] [--stages 1,3]

Two ranks on gloo, one thread each, share every sample. Hand-written torch: the same model and
attention, with exchanges in an autograd function, and ``fully_shard`` over both ranks. Pairs are
interleaved: in each round every mode trains some steps right after the others. Printed: the median
of the ratios of dsengine's speed to the other's, and an interval that contains it with 95 %.
DeepSpeed runs in processes of its own, at stage 3, where its gradients are right; if it fails, its
error is printed.
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

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tests")]

WARM, TIMED = 2, 6
RANKS = 2


def timed(mode: str, length: int, steps: int = TIMED) -> float:
    """Return tokens per second of a mode; called on every rank. The model is built anew."""
    import torch
    import torch.distributed as dist
    from parallel_modes import MODES, VOCABULARY

    step, destroy = MODES[mode](length)
    ids = torch.randint(VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))
    part = ids.chunk(RANKS, dim=1)[dist.get_rank()].contiguous()
    for _ in range(WARM):
        step(part)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        step(part)
    dist.barrier()
    seconds = time.perf_counter() - start
    destroy()
    return steps * length / seconds


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the order statistics that contain the median with at least 95 %, or the extremes."""
    ordered, count = sorted(ratios), len(ratios)
    outside, cut = 2 / 2**count, 0
    while cut + 1 < count // 2 and outside + 2 * comb(count, cut + 1) / 2**count <= 0.05:
        cut += 1
        outside += 2 * comb(count, cut) / 2**count
    return ordered[cut], ordered[count - 1 - cut]


def compared(
    mode: str, others: Sequence[str], pairs: int, length: int, run: Callable[[str], float]
) -> list[str]:
    """Return a line for each of ``others``: the ratio of the speed of ``mode`` to it."""
    rates: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    for number in range(pairs):
        # The order alternates, so that a drift of the machine affects both alike.
        for each in (mode, *others)[:: 1 if number % 2 == 0 else -1]:
            if each not in failed:
                try:
                    rates.setdefault(each, []).append(run(each))
                except RuntimeError as error:
                    failed[each] = str(error).strip().splitlines()[-1]
        print(f"{mode}: round {number + 1} of {pairs}", file=sys.stderr, flush=True)
    lines: list[str] = []
    for other in others:
        if other in failed or mode in failed:
            lines.append(f"{mode} / {other}: {failed.get(other) or failed[mode]}")
            continue
        ratios = [mine / its for mine, its in zip(rates[mode], rates[other], strict=True)]
        low, high = interval(ratios)
        lines.append(
            f"{mode} / {other}: {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f}), "
            f"{statistics.median(rates[mode]):.0f} and {statistics.median(rates[other]):.0f} "
            f"tokens/s, {length} tokens"
        )
    return lines


def main() -> None:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from compiling import LONGEST, report_compilation

    from training.ranks import Ranks

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--stages", default="1,3")
    chosen: Any = parser.parse_args()
    has_deepspeed = importlib.util.find_spec("deepspeed") is not None
    with Ranks(RANKS) as plain, Ranks(RANKS) as foreign, report_compilation():

        def run(mode: str) -> float:
            ranks = foreign if mode.startswith("deepspeed") else plain
            return ranks.run("parallel:timed", seconds=LONGEST, mode=mode, length=chosen.length)[0]

        for stage in map(int, chosen.stages.split(",")):
            others = [f"torch {stage}"] + ["deepspeed 3"] * (stage == 3 and has_deepspeed)
            mode = f"dsengine {stage}"
            print("\n".join(compared(mode, others, chosen.pairs, chosen.length, run)), flush=True)
    if not has_deepspeed:
        print("deepspeed is not installed: not compared", file=sys.stderr)


if __name__ == "__main__":
    main()
