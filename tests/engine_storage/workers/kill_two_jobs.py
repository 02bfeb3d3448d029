"""Two jobs save to one directory, like a requeued job and its remnant; both are killed.

    python tests/engine_storage/workers/kill_two_jobs.py DIRECTORY KILLS [SEED]

Both use the same tags. Each round kills a random rank of each job at a random moment, loads every
visible checkpoint, saves one more, and prints a JSON line.
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
from kill import CONTEXT, RANKS, SECONDS, Ledger

from dsengine.checkpoints import Checkpointer, CheckpointError, TrainingState, checkpoints
from suite.limits import scaled

JOBS = 2


def save_forever(
    job: int, rank: int, directory: str, store: str, first: int, started: Synchronized, keep: bool
) -> None:
    """Save repeatedly, with values that identify job and step."""
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
                started.value += 1
            model.write(mark)
            tag = f"global_step{step}" if keep else f"same{step % 2}"
            checkpointer.save(state, directory, tag, client_state={"mark": mark, "step": step})
            checkpointer.wait()
    except CheckpointError:
        os._exit(3)


def check(directory: str, connection: Any) -> None:
    """Load every visible checkpoint, then save one more."""
    model = Ledger()
    checkpointer = Checkpointer()
    state = TrainingState(module=model)
    root, broken, last = Path(directory), [], 0
    tags = checkpoints(root)
    visible = {path.name for path in root.iterdir() if not path.name.startswith(".")}
    broken += sorted(visible - {*tags, "latest"})
    for tag in [None, *tags]:
        try:
            path, client_state = checkpointer.load(state, root, tag)
        except (OSError, ValueError, RuntimeError) as error:
            broken.append(f"{tag or 'latest'}: {error}")
            continue
        if path is None or client_state is None:  # nothing was saved yet
            continue
        if model.read() != {float(client_state.get("mark", -1))}:
            broken.append(f"{tag or 'latest'}: {model.read()} for {client_state}")
        last = max(last, client_state.get("step", 0))
    model.write(JOBS * (last + 1))
    client_state = {"mark": JOBS * (last + 1), "step": last + 1}
    checkpointer.save(state, root, f"global_step{last + 1}", client_state=client_state)
    connection.send({"broken": broken, "step": last + 1, "seen": len(tags)})


def one_round(directory: Path, number: int, generator: random.Random, last: int) -> dict[str, Any]:
    saved = directory / "saved"
    started = [CONTEXT.Value("q", 0) for _ in range(JOBS)]
    keep = number % 2 == 0
    jobs = [
        [
            CONTEXT.Process(
                target=save_forever,
                args=(job, rank, saved, directory / f"{number}-{job}", last, started[job], keep),
            )
            for rank in range(RANKS)
        ]
        for job in range(JOBS)
    ]
    ranks = [process for job in jobs for process in job]
    for process in ranks:
        process.start()
    goal = generator.randrange(2, 4)
    end = time.monotonic() + scaled(SECONDS)
    while all(p.is_alive() for p in ranks) and not all(count.value >= goal for count in started):
        if time.monotonic() > end:
            break
        time.sleep(0.0005)
    alive = sum(process.is_alive() for process in ranks)
    for job in generator.sample(jobs, JOBS):
        time.sleep(generator.uniform(0, 0.08))  # a random moment of a save
        os.kill(generator.choice(job).pid or 0, signal.SIGKILL)
    for process in ranks:
        process.join(scaled(SECONDS))
        process.kill()
    receiver, sender = CONTEXT.Pipe(duplex=False)
    checker = CONTEXT.Process(target=check, args=(str(saved), sender))
    checker.start()
    checker.join(scaled(2 * SECONDS))
    result = receiver.recv() if receiver.poll() else {"broken": ["no result"], "step": last}
    return result | {"round": number, "alive": alive, "kills": JOBS}


def main() -> None:
    directory, kills = Path(sys.argv[1]), int(sys.argv[2])
    generator = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
    torch.set_num_threads(1)
    last = 0
    for number in range(kills // JOBS):
        result = one_round(directory, number, generator, last)
        last = result["step"]
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
