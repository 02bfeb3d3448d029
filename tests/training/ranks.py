"""A group of real training processes that serve many jobs, so that start-up is paid once."""

import gc
import importlib
import multiprocessing
import os
import sys
import traceback
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import Any, Self

from ports import reserved_port

SECONDS = 120.0
"""What one job may take before the ranks are given up."""
GRACE = 5.0
"""What the others have left when one rank has failed, and each to end."""
ENDING = 60.0
"""The latter where they write down which lines they ran."""
PRELOADED = ["torch", "torch.distributed.fsdp", "torch._dynamo"]
"""Imported once, in the process that all ranks are forked from. Nothing of our own: that process
does not see this one's ``sys.path``."""


_CARDS = "CARDS_BEFORE_HIDING"


def hide_cards() -> None:
    """Let this process and what it starts train on the host; ranks may still be given the cards."""
    if _CARDS not in os.environ:
        os.environ[_CARDS] = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def show_cards() -> None:
    """What was hidden, in a process that has not looked for cards yet."""
    shown = os.environ.pop(_CARDS, None)
    if shown == "all":
        del os.environ["CUDA_VISIBLE_DEVICES"]
    elif shown is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = shown


class RankError(RuntimeError):
    """A job raised on at least one rank; the message holds each rank's traceback."""


class Ranks:
    """``size`` processes joined by gloo, one thread each; with ``cuda``, by NCCL, on a card each.

    Where there are fewer cards than processes, these share them, and gloo moves their tensors.
    ``run("training.jobs:train", ...)`` calls the function on every rank with the keyword
    arguments and returns their results in order of rank.
    """

    def __init__(self, size: int = 2, device: str = "cpu") -> None:
        context = _context(device)
        port = reserved_port()
        self.closed = False
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._known: dict[str, list[Any]] = {}
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, rank, size, port, device), daemon=device == "cpu"
            )  # a loader on a card has processes of its own, which a daemon may not have
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, job: str, *, seconds: float = SECONDS, **arguments: Any) -> list[Any]:
        """Raises RankError when a rank raised, TimeoutError when one did not answer."""
        for pipe in self._pipes:
            pipe.send((job, arguments, os.environ.get("PYTEST_CURRENT_TEST", "")))
        answers: dict[int, tuple[bool, Any]] = {}
        end = monotonic() + seconds
        while len(answers) < len(self._pipes):
            open_pipes = [p for rank, p in enumerate(self._pipes) if rank not in answers]
            ready = wait(open_pipes, max(0.0, end - monotonic()))
            if not ready:
                break
            for pipe in ready:
                rank = self._pipes.index(pipe)
                answers[rank] = self._received(rank)
                if answers[rank][0]:
                    end = min(end, monotonic() + GRACE)
        return self._judged(job, answers)

    def once(self, job: str, **arguments: Any) -> list[Any]:
        """The answers of an equal request, if there was one: runs that many are held against."""
        request = repr((job, sorted(arguments.items())))
        if request not in self._known:
            self._known[request] = self.run(job, **arguments)
        return self._known[request]

    def _received(self, rank: int) -> tuple[bool, Any]:
        try:
            return self._pipes[rank].recv()
        except (EOFError, ConnectionError):
            self._processes[rank].join(GRACE)
            return True, f"--- rank {rank}\nended, exit code {self._processes[rank].exitcode}"

    def _judged(self, job: str, answers: dict[int, tuple[bool, Any]]) -> list[Any]:
        failures = [value for failed, value in answers.values() if failed]
        missing = sorted(set(range(len(self._pipes))) - answers.keys())
        if missing or 0 < len(failures) < len(self._pipes) or not self._alive():
            self.close()  # some may wait for the others, or be a collective ahead of them
        if failures:
            raise RankError("\n".join(failures))
        if missing:
            raise TimeoutError(f"ranks {missing} did not finish {job}")
        return [answers[rank][1] for rank in range(len(self._pipes))]

    def answers(self) -> bool:
        """Whether they can be asked: neither a job nor anybody else has ended one of them."""
        return not self.closed and self._alive()

    def _alive(self) -> bool:
        return all(process.is_alive() for process in self._processes)

    def close(self) -> None:
        self.closed = True
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(ENDING if os.environ.get("COVERAGE_PROCESS_START") else GRACE)
            if process.is_alive():
                process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SharedRanks:
    """Ranks by their number: started when a test first asks, and anew where a job has ended them.

    Not for jobs that change a process for good: those need ranks of their own.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._device = device
        self._running: dict[tuple[int, str], Ranks] = {}

    def __call__(self, size: int = 2, device: str | None = None) -> Ranks:
        """``device``: another one than that of the rest."""
        kind = (size, device or self._device)
        if kind not in self._running or not self._running[kind].answers():
            self._running[kind] = Ranks(*kind)
        return self._running[kind]

    def close(self) -> None:
        for ranks in self._running.values():
            ranks.close()


def _context(device: str) -> Any:
    if device != "cpu":
        return multiprocessing.get_context("spawn")  # CUDA does not work in a forked process
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _serve(pipe: Connection, rank: int, size: int, port: int, device: str) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        OMP_NUM_THREADS="1",
    )
    hide_cards() if device == "cpu" else show_cards()
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(_backend(device, rank, size), rank=rank, world_size=size)
    environment, modules = dict(os.environ), 0
    while True:
        try:
            job, arguments, test = pipe.recv()
        except EOFError:
            break
        _name_to_coverage(test)
        torch.manual_seed(0)
        pipe.send(_answer(job, arguments, rank))
        _leave_clean(environment)
        if len(sys.modules) > modules:  # what is imported stays: no collection need look at it
            modules = len(sys.modules)
            gc.freeze()
    dist.destroy_process_group()


def _backend(device: str, rank: int, size: int) -> str:
    if device == "cpu":
        return "gloo"
    import torch

    cards = torch.cuda.device_count()
    torch.cuda.set_device(rank % cards)
    if size <= cards:
        return "cpu:gloo,cuda:nccl"
    from training.shared_card import gather_by_lists

    gather_by_lists()
    return "cpu:gloo,cuda:gloo"


def _leave_clean(environment: dict[str, str]) -> None:
    """Let the next job find what the first one found."""
    import torch

    os.environ.clear()
    os.environ.update(environment)
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
    gc.enable()
    gc.collect()


def _name_to_coverage(test: str) -> None:
    """Lines that run from here on are this test's, where they are being recorded."""
    if os.environ.get("COVERAGE_PROCESS_START"):
        import coverage

        if recording := coverage.Coverage.current():
            recording.switch_context(test)


def _answer(job: str, arguments: dict[str, Any], rank: int) -> tuple[bool, Any]:
    module, _, function = job.partition(":")
    try:
        return False, getattr(importlib.import_module(module), function)(**arguments)
    except Exception:  # whatever it is, the parent shows it
        return True, f"--- rank {rank}\n{traceback.format_exc()}"
