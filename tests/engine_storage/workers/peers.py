"""Start ranks of which one fails, and record how the others end.

    python tests/engine_storage/workers/peers.py DIRECTORY CASE

Ranks are forked from a process that has imported torch, and exceptions reach the top of their
interpreter, as in scripts. In a case whose name ends with " ahead" hosts run ahead of their
collectives from the second step on, as on NCCL. The output of rank r goes to DIRECTORY/r.log.
Prints the exit code of each rank as JSON, null for one that did not end.
"""

import gc
import importlib
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import dsconfig
import dsengine
from dsengine.checkpoints import storage
from dsengine.communication.peers import abort, stragglers, watch
from dsengine.communication.peers.message import Message, MessageKind
from dsengine.communication.peers.watch import Watch
from dsengine.loop import initialization
from engine_storage.jobs.toy import ToyModel, batch_of, loss_of
from ports import reserved_port
from suite.limits import scaled
from training import expert_jobs
from training.ahead import host_runs_ahead
from training.collective_jobs import collectives_only

RANKS = 3
SECONDS = scaled(40)
VICTIM = 1
WAITING = "ranks 0, 2 have been waiting in"
"""In the report of rank 0 when all others wait for rank 1."""
AHEAD = " ahead"
hosts_run_ahead = False
until_exit = ExitStack()
SAMPLES = torch.arange(108).view(12, 9) % 31
"""Of all ranks that split layers."""
SPLIT_LAYERS: dict[str, Any] = {
    "tensor_parallel": {
        "autotp_size": RANKS,
        "partition_config": {
            "layer_specs": [
                {"patterns": [r".*\.up\.weight"]},
                {"patterns": [r".*\.down\.weight"], "partition_type": "row"},
            ]
        },
    }
}


def config(stage: int) -> dict[str, Any]:
    return {
        "train_batch_size": 12,
        "gradient_accumulation_steps": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.02}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}
        if stage == 3
        else {"stage": stage},
    }


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def is_victim() -> bool:
    return dist.get_rank() == VICTIM


def step(engine: Any) -> None:
    loss = loss_of(engine, batch_of(engine.global_steps))
    engine.backward(loss)
    engine.step()


def started(stage: int, **zero: Any) -> Any:
    torch.manual_seed(3)
    settings = config(stage)
    settings["zero_optimization"] |= zero
    with collectives_only() if hosts_run_ahead else nullcontext():
        engine, *_ = dsengine.initialize(model=ToyModel(), config=settings)
        step(engine)
    if hosts_run_ahead:
        abort.GRACE_SECONDS = 1.0
        until_exit.enter_context(host_runs_ahead())
    return engine


def killed_in_backward(folder: str, stage: int = 3) -> None:
    engine = started(stage)
    loss = loss_of(engine, batch_of(1))
    if is_victim():
        loss.register_hook(die)
    engine.backward(loss)
    engine.step()


def killed_in_save(folder: str) -> None:
    engine = started(2)
    engine.save_checkpoint(folder)
    step(engine)
    if is_victim():
        from dsengine.checkpoints import save

        save.write_tensors = die
    engine.save_checkpoint(folder)


def killed_in_save_of_split_layers(folder: str) -> None:
    engine, *_ = dsengine.initialize(model=ToyModel(), config=config(2) | SPLIT_LAYERS)
    die_in_second_save(folder, engine, lambda: loss_of(engine, SAMPLES))


def killed_in_save_of_divided_experts(folder: str) -> None:
    engine, *_ = dsengine.initialize(
        model=expert_jobs.model_of("own"), config=expert_jobs.config_of("own", 2, RANKS)
    )
    die_in_second_save(
        folder, engine, lambda: expert_jobs.micro_batch_loss(engine, "own", dist.get_rank())
    )


def die_in_second_save(folder: str, engine: Any, loss: Callable[[], torch.Tensor]) -> None:
    """Save after each of two steps; the victim dies with its file partly written."""
    write = storage._HashedFile.write

    def write_and_die(file: Any, data: Any) -> int:
        write(file, data)
        file.flush()
        die()
        return 0

    for _ in range(2):
        engine.backward(loss())
        engine.step()
        if engine.global_steps == 2 and is_victim():
            storage._HashedFile.write = write_and_die
        engine.save_checkpoint(folder)


def killed_in_iter_weights(folder: str) -> None:
    for number, _ in enumerate(started(3).iter_weights(bucket_bytes=1)):
        if is_victim() and number == 1:
            die()


def raises_in_forward(folder: str) -> None:
    engine = started(1)
    if is_victim():
        engine.module.blocks[1].register_forward_pre_hook(bad_sample)
    for _ in range(3):
        step(engine)


def bad_sample(*_: Any) -> None:
    raise ValueError("sample 17 has no label")


def raises_on_first_rank(folder: str) -> None:
    engine = started(3)
    if dist.get_rank() == 0:
        raise KeyError("labels")
    step(engine)


def raises_in_own_code(folder: str) -> None:
    """The others wait in a collective of the script, outside the engine."""
    started(0)
    if is_victim():
        raise OSError("data set is gone")
    dist.barrier()


def caught_by_the_script(folder: str) -> None:
    """Like a launcher's wrapper that reports errors itself and exits."""
    engine = started(2)
    try:
        if is_victim():
            engine.module.blocks[1].register_forward_pre_hook(bad_sample)
        step(engine)
    except ValueError:
        sys.exit(5)


def hangs(folder: str) -> None:
    """Rank 2 hangs in the engine, waiting for rank 0, which is healthy but outside of it."""
    engine = started(0)
    abort.GRACE_SECONDS = 1.0
    if is_victim():
        die()
    if dist.get_rank() == 0:
        await_end(folder, rank=2)
    else:
        engine.module.register_forward_pre_hook(lambda *_: dist.recv(torch.ones(1), src=0))
        step(engine)


def cannot_start(folder: str) -> None:
    """Only one rank has an invalid config."""
    settings = config(2)
    if is_victim():
        settings["zero_optimization"]["overlap_com"] = True
    dsengine.initialize(model=ToyModel(), config=settings)


def out_of_memory_while_building(folder: str) -> None:
    """Fail on one rank after the config check."""
    model = ToyModel()
    if is_victim():
        initialization.distribute = no_memory
    dsengine.initialize(model=model, config=config(2))


def no_memory(*_: Any) -> None:
    raise MemoryError("no memory for the shards")


def disk_full(folder: str) -> None:
    """One rank cannot write files of this size, as with a full disk or a quota."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if is_victim():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        step(on_nvme(folder))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def tile_cannot_be_read(folder: str) -> None:
    """One rank's file is shorter than what was written."""
    engine = on_nvme(folder)
    step(engine)
    if is_victim():
        os.ftruncate(engine.binding.storage._file.descriptor, 0)
    for _ in range(2):
        step(engine)


def on_nvme(folder: str) -> Any:
    settings = config(3)
    offload = {"device": "nvme", "nvme_path": folder}
    settings["zero_optimization"] |= {"offload_optimizer": offload, "sub_group_size": 500}
    return dsengine.initialize(model=ToyModel(), config=settings)[0]


def leaves_early(folder: str) -> None:
    engine = started(1)
    if is_victim():
        engine.destroy()
        return
    step(engine)


def ends_well(folder: str) -> None:
    """Ranks that destroyed their engine may exit at different times, also abruptly."""
    engine = started(2)
    engine.destroy()
    if is_victim():
        os._exit(0)
    await_end(folder, VICTIM)
    with torch.no_grad():
        engine(batch_of(0))


def fails_alike(folder: str) -> None:
    """All ranks fail in a step: the first one to end is not the reason for the others."""
    has_left = set_on_arrival(MessageKind.LEFT, VICTIM)
    engine = started(1)

    def fail(*_: Any) -> None:
        if not is_victim() and not has_left.wait(SECONDS):
            raise TimeoutError("no message that rank 1 has left")
        raise FloatingPointError("norm")

    engine._stepper.step = fail
    with suppress(FloatingPointError):
        step(engine)
    engine.destroy()
    step(started(1))


def joins_late(folder: str) -> None:
    """Ranks train again before they have read that the others do."""
    receive, has_trained, have_left = Watch._on_message, threading.Event(), threading.Semaphore(0)

    def receive_late(self: Watch, message: Message) -> None:
        if message.kind is MessageKind.JOINED and message.engines == 2:
            has_trained.wait(SECONDS)
        receive(self, message)
        if message.kind is MessageKind.LEFT:
            have_left.release()

    Watch._on_message = receive_late
    started(0).destroy()
    for _ in range(RANKS - 1):
        if not have_left.acquire(timeout=SECONDS):
            raise TimeoutError("no message that the other ranks have left")
    step(started(2))
    has_trained.set()


def aborts_alone(folder: str) -> None:
    """One rank catches an error that the others do not have, and tries to continue."""
    os.environ[stragglers.PATIENCE] = "1"
    engine = started(2)
    loss = loss_of(engine, batch_of(1))
    if is_victim():
        loss.register_hook(no_memory_left)
    try:
        engine.backward(loss)
    except torch.OutOfMemoryError:
        engine.zero_grad()
    step(engine)


def no_memory_left(*_: Any) -> None:
    raise torch.OutOfMemoryError("simulated")


def fails_in_different_blocks(folder: str) -> None:
    """Every rank runs out of memory in the same forward, but one of them a block later."""
    engine = started(3, stage3_prefetch_bucket_size=0)
    block = engine.module.blocks[1 if is_victim() else 0]
    hook = block.register_forward_pre_hook(no_memory_left)
    with suppress(torch.OutOfMemoryError):
        step(engine)
    hook.remove()
    step(engine)


def lags(folder: str) -> None:
    """One rank is late until the others have reported it."""
    os.environ[stragglers.PATIENCE] = "0.4"
    engine = started(3)
    if is_victim():
        busy_with_data(folder)
    step(engine)


def busy_with_data(folder: str) -> None:
    log, end = Path(folder).with_name("0.log"), time.monotonic() + SECONDS / 2
    while WAITING not in log.read_text() and time.monotonic() < end:
        time.sleep(0.05)


def first_rank_stops(folder: str) -> None:
    """Rank 0 is stopped until another rank has reported it."""
    os.environ[stragglers.PATIENCE] = "0.4"
    stragglers.REPLY_SECONDS = 0.5
    engine = started(3)
    if dist.get_rank() == 0:
        child = os.fork()
        if child == 0:
            await_text(Path(folder).with_name("1.log"), "rank 0 does not respond")
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)
    step(engine)


def no_data_left(folder: str) -> None:
    """A rank with less data saves, as all do at the end, while the others train."""
    os.environ[stragglers.PATIENCE] = "0.4"
    engine = started(3)
    exit_after_report(folder, "has been in save_checkpoint()")
    if not is_victim():
        step(engine)
    engine.save_checkpoint(folder)


def exit_after_report(folder: str, reason: str) -> None:
    """Exit once rank 0 has reported why ranks wait: they would without a limit."""

    def exit_then() -> None:
        log = Path(folder).with_name("0.log")
        await_text(log, WAITING)
        await_text(log, reason)
        os._exit(3)

    threading.Thread(target=exit_then).start()


def set_on_arrival(kind: MessageKind, rank: int) -> threading.Event:
    """Return an event that is set when this rank has processed such a message of ``rank``."""
    receive, arrived = Watch._on_message, threading.Event()

    def receive_and_set(self: Watch, message: Message) -> None:
        receive(self, message)
        if message.kind is kind and message.rank == rank:
            arrived.set()

    Watch._on_message = receive_and_set
    return arrived


def await_text(log: Path, text: str) -> None:
    """Wait until the output of another rank contains ``text``."""
    end = time.monotonic() + SECONDS / 2
    while text not in log.read_text() and time.monotonic() < end:
        time.sleep(0.05)


def await_end(folder: str, rank: int) -> None:
    """Wait until the process of another rank has ended."""
    process = int(Path(folder).with_name(f"{rank}.pid").read_text())
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    raise TimeoutError(f"rank {rank} has not ended")


def run(rank: int, port: int, folder: Path, case: str) -> None:
    log = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    (folder / f"{rank}.pid").write_text(str(os.getpid()))
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    watch.failure_reason.__defaults__ = (scaled(watch.EXPLANATION_SECONDS),)
    dist.init_process_group("gloo")
    global hosts_run_ahead
    hosts_run_ahead = case.endswith(AHEAD)
    globals()[case.removesuffix(AHEAD)](str(folder / "saved"))


def wait_for(processes: list[int]) -> list[int | None]:
    codes: dict[int, int] = {}
    end = time.monotonic() + SECONDS
    while len(codes) < len(processes) and time.monotonic() < end:
        for process in set(processes) - codes.keys():
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                codes[process] = os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    for process in set(processes) - codes.keys():
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    return [codes.get(process) for process in processes]


def fork_ranks() -> tuple[int | None, list[int]]:
    """Return (own rank, ()) in a child, (None, children) in the parent."""
    children: list[int] = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            return rank, []
        children.append(child)
    return None, children


def preload() -> None:
    """Import once what every rank needs."""
    importlib.import_module("torch._dynamo")
    document, facts = dsconfig.read(config(3)), dsconfig.Facts(world_size=RANKS)
    dsconfig.validate(document, facts, runtime="dsengine")
    dsconfig.plan(dsconfig.resolve(document, facts), facts)


preload()
gc.freeze()  # exclude it from the ranks' garbage collection
# Not in a function: exceptions have to reach the top of the interpreter.
folder, case = Path(sys.argv[1]), sys.argv[2]
port = reserved_port()
rank, children = fork_ranks()
if rank is not None:
    run(rank, port, folder, case)
else:
    print(json.dumps(wait_for(children)))
