"""Saving and loading checkpoints, compared with DCP, DeepSpeed and the disk.

    python benchmarks/checkpoint.py [--rounds 7] [--mib 256] [--folder DIRECTORY]

One rank; AdamW states of a model of plain tensors, three times ``--mib`` in total. Each save writes
next to the previous one, which is then removed. "stall": seconds for which an asynchronous save
blocks the step, excluding the write. DeepSpeed's save is that of its checkpoint engine, without
fsync. Loads read the page cache. Seconds are medians over rounds in random order after one warmup;
ratios are medians within a round.
"""

import argparse
import importlib.util
import os
import random
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

PIECE = 2**22
"""Elements of a weight (16 MiB)."""
Action = Callable[[], Any]
PAIRS = {
    "save": "DCP save",
    "DCP save": "the disk alone",
    "stall": "one copy",
    "DCP stall": "one copy",
    "load": "load, not verified",
    "load, not verified": "DCP load",
}


def trained(mebibytes: int) -> Any:
    from dsengine.checkpoints import TrainingState

    count = max(1, mebibytes * 2**20 // 4 // PIECE)
    model = nn.ParameterList(nn.Parameter(torch.randn(PIECE)) for _ in range(count))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    for weight in model:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    optimizer.zero_grad()
    return TrainingState(module=model, optimizer=optimizer)


def plain(state: Any) -> dict[str, torch.Tensor]:
    """Return the same tensors by name."""
    found = {name: weight.detach() for name, weight in state.parameters().items()}
    for name, weight in state.parameters().items():
        for key, value in state.optimizer.state[weight].items():
            found[f"{name}.{key}"] = value
    return found


class Rotating:
    """Write to a new place and remove the previous one, as a checkpoint does."""

    def __init__(self, folder: Path, write: Callable[[Path], Any]) -> None:
        self._folder, self._write, self._count = folder, write, 0

    def __call__(self) -> None:
        before, self._count = self._folder / f"{self._count}", self._count + 1
        self._folder.mkdir(exist_ok=True)
        self._write(self._folder / f"{self._count}")
        shutil.rmtree(before, ignore_errors=True)
        with suppress(OSError):
            before.unlink()


def saves(state: Any, tensors: dict[str, torch.Tensor], folder: Path) -> dict[str, Action]:
    from torch.distributed.checkpoint.state_dict_saver import save

    from dsengine.checkpoints import Checkpointer

    checkpointer = Checkpointer()
    content = [memoryview(each.numpy()).cast("B") for each in tensors.values() if each.dim()]

    def disk(path: Path) -> None:
        with path.open("wb") as file:
            for each in content:
                file.write(each)
            os.fsync(file.fileno())

    found: dict[str, Action] = {
        "save": lambda: checkpointer.save(state, folder, "new"),
        "DCP save": Rotating(
            folder / "dcp", lambda path: save(tensors, checkpoint_id=path, no_dist=True)
        ),
        "the disk alone": Rotating(folder / "disk", disk),
    }
    if importlib.util.find_spec("deepspeed"):
        from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import (
            TorchCheckpointEngine,
        )

        engine = TorchCheckpointEngine()
        found["DeepSpeed's save"] = Rotating(
            folder / "deepspeed", lambda path: engine.save(tensors, str(path))
        )
    return found


def stalls(state: Any, tensors: dict[str, torch.Tensor], folder: Path) -> dict[str, Action]:
    """Each returns a function that waits for its end."""
    from torch.distributed.checkpoint.state_dict_saver import async_save

    from dsengine.checkpoints import Checkpointer

    checkpointer = Checkpointer(asynchronous=True)
    used = {name: torch.zeros_like(each) for name, each in tensors.items()}

    def stall() -> Action:
        checkpointer.save(state, folder, "asynchronous")
        return checkpointer.wait

    def dcp_stall() -> Action:
        path = folder / "dcp-asynchronous"
        shutil.rmtree(path, ignore_errors=True)
        return async_save(tensors, checkpoint_id=path, no_dist=True).result  # type: ignore[union-attr]

    def copy() -> None:
        for name, each in tensors.items():
            used[name].copy_(each)

    return {"stall": stall, "DCP stall": dcp_stall, "one copy": copy}


def loads(state: Any, tensors: dict[str, torch.Tensor], folder: Path) -> dict[str, Action]:
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save

    from dsengine.checkpoints import Checkpointer

    checkpointer = Checkpointer()
    checkpointer.save(state, folder, "kept")
    save(tensors, checkpoint_id=folder / "dcp-kept", no_dist=True)
    return {
        "load": lambda: checkpointer.load(state, folder, "kept"),
        "load, not verified": lambda: checkpointer.load(state, folder, "kept", verify=False),
        "DCP load": lambda: load(tensors, checkpoint_id=folder / "dcp-kept", no_dist=True),
    }


def touch(mebibytes: int) -> None:
    """Allocate and release memory, so that the system has mapped it.

    The first use of a page in a virtual machine costs several times as much as copying into it.
    """
    for tensor in [torch.ones(2**18) for _ in range(mebibytes)]:
        del tensor


def timed(action: Action) -> float:
    """Return the seconds of an action, after pending disk writes have finished."""
    os.sync()
    start = time.perf_counter()
    wait = action()
    seconds = time.perf_counter() - start
    if callable(wait):
        wait()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--folder", type=Path, default=None)
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
        folder, state = Path(name), trained(chosen.mib)
        tensors = plain(state)
        todo: dict[str, Action] = {}
        for make in (saves, stalls, loads):
            todo |= make(state, tensors, folder)
        touch(12 * 3 * chosen.mib)
        order = random.Random(3)
        seconds: dict[str, list[float]] = {name: [] for name in todo}
        for _ in range(chosen.rounds + 1):
            for each in order.sample(list(todo), len(todo)):
                seconds[each].append(timed(todo[each]))
    print(f"{'':20} {'seconds':>8} {'GiB/s':>6}  ratio")
    for each, (_, *counted) in seconds.items():
        middle = statistics.median(counted)
        line = f"{each:20} {middle:8.2f} {3 * chosen.mib / 1024 / middle:6.2f}"
        if each in PAIRS:
            pairs = zip(counted, seconds[PAIRS[each]][1:], strict=True)
            line += f"  {statistics.median(a / b for a, b in pairs):.2f} of {PAIRS[each]}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
