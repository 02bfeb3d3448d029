"""Saving and loading a checkpoint: what checksums cost, beside torch.distributed.checkpoint.

    python benchmarks/checkpoint.py [--rounds 7] [--mib 256] [--folder DIRECTORY]

One rank, AdamW's states of a model of plain tensors, three times ``--mib`` in all. Loads are from
the page cache. Seconds are medians over interleaved rounds; ratios are medians within a round.
"""

import argparse
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

PIECE = 2**22
"""Elements of a weight: 16 MiB."""


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


def actions(state: Any, folder: Path) -> dict[str, Callable[[], Any]]:
    """What is timed, by name. Each save writes anew; each load reads what was saved first."""
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save

    from dsengine.checkpoints import Checkpointer

    checkpointer = Checkpointer()
    checkpointer.save(state, folder, "kept")
    plain = {name: weight.detach() for name, weight in state.parameters().items()}
    for name, weight in state.parameters().items():
        for key, value in state.optimizer.state[weight].items():
            plain[f"{name}.{key}"] = value
    save(plain, checkpoint_id=folder / "dcp", no_dist=True)

    def save_again() -> None:
        shutil.rmtree(folder / "again", ignore_errors=True)
        save(plain, checkpoint_id=folder / "again", no_dist=True)

    return {
        "save": lambda: checkpointer.save(state, folder, "new"),
        "DCP save": save_again,
        "load": lambda: checkpointer.load(state, folder, "kept"),
        "load, not verified": lambda: checkpointer.load(state, folder, "kept", verify=False),
        "DCP load": lambda: load(plain, checkpoint_id=folder / "dcp", no_dist=True),
    }


def timed(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--folder", type=Path, default=None)
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore", message="torch.distributed is")
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        todo = actions(trained(chosen.mib), Path(folder))
        seconds: dict[str, list[float]] = {name: [] for name in todo}
        for _ in range(chosen.rounds):
            for name, action in todo.items():
                seconds[name].append(timed(action))
    print(f"{'':20} {'seconds':>8} {'GiB/s':>6}  ratio")
    pairs = {"save": "DCP save", "load": "load, not verified", "load, not verified": "DCP load"}
    for name, each in seconds.items():
        middle = statistics.median(each)
        line = f"{name:20} {middle:8.2f} {3 * chosen.mib / 1024 / middle:6.2f}"
        if name in pairs:
            other = seconds[pairs[name]]
            ratio = statistics.median(a / b for a, b in zip(each, other, strict=True))
            line += f"  {ratio:.2f} of {pairs[name]}"
        print(line)


if __name__ == "__main__":
    main()
