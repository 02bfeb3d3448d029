"""Two jobs save into one directory, as a requeued one beside its zombie; both are killed.

    python tests/engine_storage/workers/kill_two_jobs.py DIRECTORY KILLS [SEED]

Both use the same tags. Prints one JSON line per round, which kills a random rank of each job at a
random moment; then every checkpoint that can be seen is loaded, and one more is saved.
"""

import json
import os
import random
import signal
import sys
import time
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from kill import CONTEXT, RANKS, Ledger

from dsengine.checkpoints import Checkpointer, CheckpointError, TrainingState, checkpoints

JOBS = 2


def save_for_ever(
    job: int, rank: int, directory: str, store: str, first: int, begun: Synchronized, keep: bool
) -> None:
    """Save step after step; what job and step write is theirs alone."""
    torch.set_num_threads(1)
    sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115  # gloo reports the lost peer
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    model = Ledger()
    checkpointer = Checkpointer(asynchronous=keep, keep=3 if keep else None)
    state = TrainingState(module=model)
    step = first
    try:
        while True:
            step += 1
            mark = JOBS * step + job
            if rank == 0:
                begun.value += 1
            model.write(mark)
            tag = f"global_step{step}" if keep else f"same{step % 2}"
            checkpointer.save(state, directory, tag, client_state={"mark": mark, "step": step})
            checkpointer.wait()
    except CheckpointError:
        os._exit(3)


def check(directory: str, connection: Any) -> None:
    """Load every checkpoint that can be seen, then save one more."""
    model = Ledger()
    checkpointer = Checkpointer()
    state = TrainingState(module=model)
    root, broken, last = Path(directory), [], 0
    seen = checkpoints(root)
    visible = {path.name for path in root.iterdir() if not path.name.startswith(".")}
    broken += sorted(visible - {*seen, "latest"})
    for tag in [None, *seen]:
        try:
            path, client_state = checkpointer.load(state, root, tag)
        except (OSError, ValueError, RuntimeError) as error:
            broken.append(f"{tag or 'latest'}: {error}")
            continue
        if path is None and tag is None:  # nothing was saved yet
            continue
        if model.read() != {float(client_state.get("mark", -1))}:
            broken.append(f"{tag or 'latest'}: {model.read()} for {client_state}")
        last = max(last, client_state.get("step", 0))
    model.write(JOBS * (last + 1))
    told = {"mark": JOBS * (last + 1), "step": last + 1}
    checkpointer.save(state, root, f"global_step{last + 1}", client_state=told)
    connection.send({"broken": broken, "step": last + 1, "seen": len(seen)})


def one_round(directory: Path, number: int, dice: random.Random, last: int) -> dict[str, Any]:
    saved = directory / "saved"
    begun = [CONTEXT.Value("q", 0) for _ in range(JOBS)]
    keep = number % 2 == 0
    jobs = [
        [
            CONTEXT.Process(
                target=save_for_ever,
                args=(job, rank, saved, directory / f"{number}-{job}", last, begun[job], keep),
            )
            for rank in range(RANKS)
        ]
        for job in range(JOBS)
    ]
    ranks = [process for job in jobs for process in job]
    for process in ranks:
        process.start()
    goal = dice.randrange(2, 4)
    while all(p.is_alive() for p in ranks) and not all(each.value >= goal for each in begun):
        time.sleep(0.0005)
    alive = sum(process.is_alive() for process in ranks)
    for job in dice.sample(jobs, JOBS):
        time.sleep(dice.uniform(0, 0.08))
        os.kill(dice.choice(job).pid or 0, signal.SIGKILL)
    for process in ranks:
        process.join(30)
        process.kill()
    receiver, sender = CONTEXT.Pipe(duplex=False)
    judge = CONTEXT.Process(target=check, args=(str(saved), sender))
    judge.start()
    judge.join(60)
    verdict = receiver.recv() if receiver.poll() else {"broken": ["no verdict"], "step": last}
    return verdict | {"round": number, "alive": alive, "kills": JOBS}


def main() -> None:
    directory, kills = Path(sys.argv[1]), int(sys.argv[2])
    dice = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
    torch.set_num_threads(1)
    last = 0
    for number in range(kills // JOBS):
        verdict = one_round(directory, number, dice, last)
        last = verdict["step"]
        print(json.dumps(verdict), flush=True)


if __name__ == "__main__":
    main()
