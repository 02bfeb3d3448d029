"""The engine compared with DistributedDataParallel, fully_shard and DeepSpeed, in one run.

    python benchmarks/engine.py [--rounds 7] [--modes 'dsengine 2,deepspeed 2'] [--memory]
    python benchmarks/engine.py --overhead

Two ranks on gloo, one thread each. Speed: tokens per second, medians over interleaved rounds
(each round trains every mode anew), and the median of the ratios to DDP in the same round.
Memory: peak resident set of new processes minus that before the model.
Overhead: milliseconds per step of a tiny model with 29 tensors on one rank, the minimum over ten
times as many rounds.
"""

import argparse
import gc
import importlib.util
import os
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tests")]

WARM, TIMED = 2, 4
BURST = 20
"""Steps per turn of a mode."""
SMALL: dict[str, Any] = {"dim": 16, "layers": 2, "heads": 2, "vocabulary": 32, "context": 4}


def timed(mode: str, steps: int = TIMED, **workload: Any) -> float:
    """Return tokens per second over all ranks; called on every rank. ``workload``: see Workload."""
    import torch.distributed as dist
    from engine_modes import MODES, Workload

    work = Workload(**workload)
    step, destroy = MODES[mode](work)
    batch = work.batch(seed=dist.get_rank())
    for _ in range(WARM):
        step(batch)
    _all_done(work.device)
    start = time.perf_counter()
    for _ in range(steps):
        step(batch)
    _all_done(work.device)
    seconds = time.perf_counter() - start
    destroy()
    del step, destroy
    gc.collect()
    return dist.get_world_size() * steps * work.tokens / seconds


def _all_done(device: str) -> None:
    """Wait for this rank's device, then for the other ranks."""
    import torch
    import torch.distributed as dist

    if device != "cpu":
        torch.cuda.synchronize()
    dist.barrier()


def peak(mode: str) -> float:
    """Return the peak resident MiB minus that before the model; called on every rank."""
    if "deepspeed" in mode:
        import deepspeed  # noqa: F401
    import torch.distributed as dist
    import torch.distributed.tensor  # noqa: F401

    import dsengine.loop.engine  # noqa: F401

    dist.barrier()
    before = _resident()
    timed(mode, steps=2)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024**2


def paired(mode: str, other: str, rounds: int) -> tuple[float, float]:
    """Return the minimum milliseconds per step of two interleaved modes on this rank."""
    from engine_modes import MODES, Workload

    work = Workload(**SMALL)
    batch = work.batch(seed=0)
    built = [MODES[each](work) for each in (mode, other)]
    shortest = [float("inf")] * 2
    for _ in range(rounds):
        for place, (step, _) in enumerate(built):
            start = time.perf_counter()
            for _ in range(BURST):
                step(batch)
            shortest[place] = min(shortest[place], (time.perf_counter() - start) * 1e3 / BURST)
    for _, destroy in built:
        destroy()
    return shortest[0], shortest[1]


def overhead(rounds: int) -> list[str]:
    """Return a table: milliseconds per step of a small model by stage and with plain torch."""
    from engine_modes import PLAIN_TORCH

    from training.ranks import Ranks

    lines = [f"{'mode':12} {'ms/step':>9}  {'plain torch':>16} {'ms/step':>9} {'overhead':>9}"]
    with Ranks(1) as one:
        for stage, other in PLAIN_TORCH.items():
            mode = f"dsengine {stage}"
            [(mine, theirs)] = one.run("engine:paired", mode=mode, other=other, rounds=10 * rounds)
            lines.append(f"{mode:12} {mine:9.3f}  {other:>16} {theirs:9.3f} {mine - theirs:9.3f}")
    return lines


def speeds(modes: list[str], rounds: int) -> dict[str, list[float]]:
    """DeepSpeed patches torch permanently, so it runs in separate processes."""
    from training.ranks import Ranks

    results: dict[str, list[float]] = {mode: [] for mode in modes}
    with Ranks(2) as plain, Ranks(2) as foreign:
        for number in range(rounds):
            for mode in modes:
                ranks = foreign if mode.startswith("deepspeed") else plain
                results[mode].append(measured(ranks, "engine:timed", mode)[0])
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return results


def measured(ranks: Any, job: str, mode: str) -> list[float]:
    """Return what each rank measures; the first run of DeepSpeed may compile for minutes."""
    from compiling import LONGEST, report_compilation

    with report_compilation():
        return ranks.run(job, seconds=LONGEST, mode=mode)


def memory(modes: list[str]) -> dict[str, float]:
    from training.ranks import Ranks

    peaks = {}
    for mode in modes:
        with Ranks(2) as fresh:
            peaks[mode] = max(measured(fresh, "engine:peak", mode))
    return peaks


def table(results: dict[str, list[float]], peaks: dict[str, float]) -> list[str]:
    baseline = next(iter(results))
    lines = [f"{'mode':20} {'tokens/s':>9} {'/ ' + baseline:>8} {'lowest':>7} {'peak MiB':>9}"]
    for mode, rates in results.items():
        paired = [a / b for a, b in zip(rates, results[baseline], strict=True)]
        peak = f"{peaks[mode]:9.0f}" if mode in peaks else ""
        lines.append(
            f"{mode:20} {statistics.median(rates):9.0f} {statistics.median(paired):8.3f} "
            f"{min(paired):7.3f} {peak}"
        )
    return lines


def main() -> None:
    from engine_modes import FP32, MODES

    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--modes", default=",".join(FP32))
    parser.add_argument("--memory", action="store_true", help="measure peak memory as well")
    parser.add_argument(
        "--overhead", action="store_true", help="measure only the engine's overhead"
    )
    chosen: Any = parser.parse_args()
    if chosen.overhead:
        print("\n".join(overhead(chosen.rounds)))
        return
    modes = [mode.strip() for mode in chosen.modes.split(",")]
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        parser.error(f"unknown modes {unknown}; choose from {', '.join(MODES)}")
    if importlib.util.find_spec("deepspeed") is None:
        modes = [mode for mode in modes if not mode.startswith("deepspeed")]
        print("deepspeed is not installed: skipping its modes", file=sys.stderr)
    peaks = memory(modes) if chosen.memory else {}
    print("\n".join(table(speeds(modes, chosen.rounds), peaks)))


if __name__ == "__main__":
    main()
