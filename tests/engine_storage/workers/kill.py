"""Repeatedly kill a random rank at a random moment of a save, and load the checkpoints.

    python tests/engine_storage/workers/kill.py DIRECTORY ROUNDS [SEED]

Prints one JSON line per round. Ranks are forked from a process that has imported torch.
"""

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dsengine.checkpoints import Checkpointer, CheckpointError, TrainingState, checkpoints
from suite.limits import scaled

RANKS = 2
ELEMENTS = 400_000
SECONDS = 30.0
"""Limit of saves and loads of a round."""
CONTEXT = multiprocessing.get_context("fork")


class Ledger(nn.Module):
    """A model whose elements all equal the number of the saved step."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(ELEMENTS // 4)) for _ in range(4))

    @torch.no_grad()
    def write(self, step: int) -> None:
        for parameter in self.weights:
            parameter.fill_(step)

    def read(self) -> set[float]:
        return {value for parameter in self.weights for value in parameter.unique().tolist()}


def save_forever(
    rank: int, directory: str, store: str, started: Synchronized, done: Synchronized, keep: bool
) -> None:
    """Save repeatedly; ``started`` and ``done`` report the progress to the parent."""
    torch.set_num_threads(1)
    sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115  # gloo reports the lost peer
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    model = Ledger()
    checkpointer = Checkpointer(asynchronous=rank >= 0 and keep, keep=3)
    state = TrainingState(module=model)
    step = done.value
    try:
        while True:
            step += 1
            if rank == 0:
                started.value = step
            model.write(step)
            # Every other run uses a single tag, to test replacing a checkpoint.
            tag = f"global_step{step}" if keep else "same"
            checkpointer.save(state, directory, tag, client_state={"step": step})
            checkpointer.wait()
            if rank == 0:
                done.value = step
    except CheckpointError:
        os._exit(3)


def check(directory: str, at_least: int, connection: Any) -> None:
    """Load the newest checkpoint and all other visible ones."""
    model = Ledger()
    checkpointer = Checkpointer()
    state = TrainingState(module=model)
    root = Path(directory)
    path, client_state = checkpointer.load(state, root)
    newest = (client_state or {}).get("step", 0)
    is_complete = model.read() == {float(newest)} and newest >= at_least
    tags = checkpoints(root)
    for tag in tags:
        _, other = checkpointer.load(state, root, tag)
        is_complete = is_complete and model.read() == {float((other or {})["step"])}
    visible = sorted(p.name for p in root.iterdir() if not p.name.startswith("."))
    is_complete = is_complete and visible == sorted([*tags, "latest"])
    connection.send({"path": path, "step": newest, "complete": is_complete})


def one_round(directory: Path, number: int, generator: random.Random, last: int) -> dict[str, Any]:
    store = directory / f"store{number}"
    started, done = CONTEXT.Value("q", last), CONTEXT.Value("q", last)
    saved = directory / "saved"
    keep = number % 2 == 0
    ranks = [
        CONTEXT.Process(target=save_forever, args=(r, str(saved), str(store), started, done, keep))
        for r in range(RANKS)
    ]
    for process in ranks:
        process.start()
    goal = last + 1 + generator.randrange(1, 4)
    end = time.monotonic() + scaled(SECONDS)
    while started.value < goal and all(p.is_alive() for p in ranks) and time.monotonic() < end:
        time.sleep(0.0005)
    time.sleep(generator.uniform(0, 0.08))  # a random moment of the save
    victim = generator.randrange(RANKS)
    acknowledged = done.value
    os.kill(ranks[victim].pid or 0, signal.SIGKILL)
    for process in ranks:
        process.join(scaled(SECONDS))
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
    receiver, sender = CONTEXT.Pipe(duplex=False)
    checker = CONTEXT.Process(target=check, args=(str(saved), acknowledged, sender))
    checker.start()
    checker.join(scaled(SECONDS))
    result = receiver.recv() if receiver.poll() else {"complete": False, "step": 0}
    survivor = codes[1 - victim]
    return result | {"round": number, "victim": victim, "survivor": survivor}


def main() -> None:
    directory, rounds = Path(sys.argv[1]), int(sys.argv[2])
    generator = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
    torch.set_num_threads(1)
    last = 0
    for number in range(rounds):
        result = one_round(directory, number, generator, last)
        last = result["step"]
        print(json.dumps(result), flush=True)
    shutil.rmtree(directory / "saved", ignore_errors=True)


if __name__ == "__main__":
    main()
