"""Offloaded optimizer step, compared with memory bandwidth, disk bandwidth and DeepSpeed.

    python benchmarks/tiers.py [--rounds 7] [--millions 64] [--folder DIRECTORY] [--part host]

host: parameters per second of AdamW's step with bf16 output, on all cores of this process
(OMP_NUM_THREADS), relative to a copy of the same number of bytes and to DeepSpeed's CPUAdam.
nvme: bytes per second of tiles, relative to sequential direct I/O in the same folder; and the full
step relative to the longer of its two halves.
train: a training step with offload_optimizer compared with DeepSpeed's with the same config, in
separate processes, and resident memory after each step compared with the estimate.
Medians over interleaved rounds; ratios are medians within a round.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tests")]

WEIGHT = 4 * 2**20
"""Elements of one parameter."""
MOVED = 4 * 4 + 3 * 4 + 4 + 2
"""Bytes per element of an AdamW step: weight, gradient and two moments read, all but the gradient
written; the weight read again and written in 16 bits."""
LARGE_BLOCK = 8 * 2**20
"""Bytes per request of sequential I/O."""
OFFLOADED = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
WIDE: dict[str, Any] = {"dim": 768, "layers": 8, "heads": 12, "vocabulary": 16384, "context": 64}

Actions = Mapping[str, Callable[[], Any]]
Seconds = dict[str, list[float]]


def interleaved(actions: Actions, rounds: int) -> Seconds:
    """Return the seconds of every action in every round, after one warmup each."""
    seconds: Seconds = {name: [] for name in actions}
    for action in actions.values():
        action()
    for _ in range(rounds):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def bound(elements: int, **settings: Any) -> tuple[Any, Callable[[], None]]:
    """Return an AdamW of fp32 masters for bf16 shards, and its step."""
    import torch

    from dsconfig.runtimes.effective import effective
    from dsengine.tiers import OffloadedBinding, OffloadSettings

    count = max(1, elements // WEIGHT)
    masters = {f"w{i}": torch.nn.Parameter(torch.randn(WEIGHT).bfloat16()) for i in range(count)}
    optimizer = torch.optim.AdamW(masters.values(), lr=1e-4, fused=True)
    offload = OffloadSettings.of(effective(OFFLOADED))
    assert offload is not None
    binding = OffloadedBinding(optimizer, masters, replace(offload, **settings), {})
    for weight in masters.values():
        weight.sum().backward()

    def step() -> None:
        binding.gradients(iter(binding.offloaded_gradients.items()))
        binding.step()
        binding.drop_gradients()

    return binding, step


def host(elements: int, rounds: int) -> list[str]:
    import torch

    _, step = bound(elements)
    source = torch.randn(elements)
    target = torch.empty_like(source)
    actions: dict[str, Callable[[], Any]] = {"copy": lambda: target.copy_(source), "tiles": step}
    cpu_adam = deepspeed_step(elements)
    if cpu_adam is not None:
        actions["CPUAdam"] = cpu_adam
    seconds = interleaved(actions, rounds)
    copied = statistics.median(seconds["copy"])
    lines = [
        f"a copy reads and writes {2 * 4 * elements / copied / 1e9:.1f} GB/s: "
        f"{2 * 4 * elements / copied / MOVED / 1e6:.0f} million parameters/s at most"
    ]
    bound_seconds = [seconds_of_copy * MOVED / 8 for seconds_of_copy in seconds["copy"]]
    for name in list(actions)[1:]:
        rate = elements / statistics.median(seconds[name]) / 1e6
        share = ratio(bound_seconds, seconds[name])
        lines.append(f"{name:8} {rate:6.0f} million parameters/s, {share:.2f} of that")
    if cpu_adam is not None:
        lines.append(f"tiles: {ratio(seconds['CPUAdam'], seconds['tiles']):.2f} times CPUAdam")
    return lines


def deepspeed_step(elements: int) -> Callable[[], None] | None:
    """Return the same step with DeepSpeed's kernel and a copy to bf16; None if not installed."""
    import torch

    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam  # type: ignore[import-untyped]
    except ImportError:
        return None
    parts = [torch.nn.Parameter(torch.randn(WEIGHT)) for _ in range(max(1, elements // WEIGHT))]
    shards = [part.detach().bfloat16() for part in parts]
    for part in parts:
        part.grad = torch.ones_like(part)
    optimizer = DeepSpeedCPUAdam(parts, lr=1e-4, adamw_mode=True)

    def step() -> None:
        optimizer.step()
        for part, shard in zip(parts, shards, strict=True):
            shard.copy_(part.detach())

    return step


def nvme(elements: int, rounds: int, folder: Path) -> list[str]:
    from dsengine.tiers.files import Buffer, FileIO, UnnamedFile, wait

    binding, step = bound(elements, nvme_path=str(folder))
    _, in_memory = bound(elements)
    size = binding.storage._file.size
    buffer = Buffer(256 * 2**20)
    count = -(-size // buffer.size)
    parts = [UnnamedFile(folder / "sequential", buffer.size) for _ in range(count)]
    large = FileIO(4, LARGE_BLOCK)

    def sequential() -> None:
        """Write, then read every byte with the fastest request size."""
        for part in parts:
            wait(large.exchange(buffer, write=part.extent))
        for part in parts:
            wait(large.exchange(buffer, read=part.extent))

    def tiles() -> None:
        for _ in binding.storage.loaded():
            pass

    actions = {"sequential": sequential, "tiles": tiles, "step": step, "in memory": in_memory}
    seconds = interleaved(actions, rounds)
    sequential_bytes = sum(part.size for part in parts)
    scale = size / sequential_bytes
    seconds["sequential"] = [duration * scale for duration in seconds["sequential"]]
    longer_half = [max(a, b) for a, b in zip(seconds["tiles"], seconds["in memory"], strict=True)]
    binding.close()
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return [
        f"sequential direct I/O {2 * size / medians['sequential'] / 1e9:.2f} GB/s, "
        f"tiles {2 * size / medians['tiles'] / 1e9:.2f} GB/s: "
        f"{ratio(seconds['sequential'], seconds['tiles']):.2f} of it",
        f"step {medians['step']:.2f} s, its tiles alone {medians['tiles']:.2f} s, in memory "
        f"{medians['in memory']:.2f} s: {ratio(seconds['step'], longer_half):.2f} of the longer",
    ]


def train(rounds: int) -> list[str]:
    from compiling import LONGEST, report_compilation

    from training.ranks import Ranks

    modes = ["dsengine 2 offload", "deepspeed 2 offload"]
    rates: Seconds = {mode: [] for mode in modes}
    with Ranks(1) as engine, Ranks(1) as deepspeed, report_compilation():
        for _ in range(rounds):
            for mode, ranks in zip(modes, (engine, deepspeed), strict=True):
                [rate] = ranks.run("engine:timed", seconds=LONGEST, mode=mode, **WIDE)
                rates[mode].append(rate)
    lines = [
        f"{mode}: {statistics.median(mode_rates):.0f} tokens/s"
        for mode, mode_rates in rates.items()
    ]
    lines.append(f"{ratio(rates[modes[0]], rates[modes[1]]):.2f} times DeepSpeed's")
    with Ranks(1) as fresh:
        [[after_steps, peak, between_steps, highest]] = fresh.run("tiers:memory", steps=8)
    shown = ", ".join(f"{size / 2**20:.0f}" for size in after_steps)
    return [
        *lines,
        f"MiB after each step: {shown}; estimated {between_steps / 2**20:.0f} "
        f"({max(after_steps) / between_steps - 1:+.1%})",
        f"MiB at most: {peak / 2**20:.0f}; estimated {highest / 2**20:.0f} "
        f"({peak / highest - 1:+.1%})",
    ]


def memory(steps: int) -> tuple[list[int], int, int, int]:
    """Return resident bytes added after each step and at peak, with their estimates."""
    import gc

    from engine_modes import MODES, Workload, config

    import dsengine
    from dsconfig import TrainingFacts

    warm = Workload(dim=64, layers=1, heads=1, vocabulary=64, context=8)
    step, destroy = MODES["dsengine 2 offload"](warm)
    step(warm.batch(0))
    destroy()
    del step, destroy
    gc.collect()
    before = resident()
    work = Workload(**{**WIDE, "dim": 1024, "heads": 8})
    model = work.model()
    model.config = {  # for the estimate of its activations
        "model_type": "gpt2",
        "n_embd": work.dim,
        "n_layer": work.layers,
        "n_head": work.heads,
        "vocab_size": work.vocabulary,
        "n_positions": work.context,
    }
    settings = config(2, "fp32", 1, offloads=True)
    training = TrainingFacts(sequence_length=work.context)
    engine, *_ = dsengine.initialize(model=model, config=settings, training=training)
    batch, after_steps = work.batch(0)[:1], list[int]()
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    for _ in range(steps):
        engine.backward(engine(batch))
        engine.step()
        after_steps.append(resident() - before)
    plan = engine.plan.memory
    between_steps = plan["host_bytes"] + 4 * sum(
        parameter.numel() for parameter in model.parameters()
    )
    passes = max(plan["phases"][phase] for phase in ("forward", "backward", "step"))
    return after_steps, resident("VmHWM") - before, between_steps, plan["host_bytes"] + passes


def resident(name: str = "VmRSS") -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--millions", type=int, default=64, help="parameters in millions")
    parser.add_argument("--folder", type=Path, default=None, help="folder for tiles")
    parser.add_argument("--part", choices=["host", "nvme", "train"], default=None)
    options: Any = parser.parse_args()
    elements = max(1, options.millions * 10**6 // WEIGHT) * WEIGHT
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        parts: dict[str, Callable[[], list[str]]] = {
            "host": lambda: host(elements, options.rounds),
            "nvme": lambda: nvme(elements, options.rounds, Path(folder)),
            "train": lambda: train(options.rounds),
        }
        for name, part in parts.items():
            if options.part in (None, name):
                print(name, *part(), sep="\n  ", flush=True)


if __name__ == "__main__":
    main()
