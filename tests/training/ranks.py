"""Groups of training processes that run many jobs, so that they start only once."""

import gc
import importlib
import multiprocessing
import os
import sys
import traceback
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import Any, Self

from ports import reserved_port
from suite.limits import scaled
from suite.machine import machine_for_ranks

SECONDS = 120.0
"""Seconds until a job times out on an idle machine, or until ranks have started."""
GRACE = 5.0
"""Seconds for the other ranks after one has failed, and for each to exit."""
ENDING = 60.0
"""Seconds to exit while recording coverage."""
CROWDED = 80
"""Threads of a rank from which shared ranks are replaced: a process group has three, which poll."""
PRELOADED = [
    "torch",
    "torch.distributed.fsdp",
    "torch._dynamo",
    "dsengine.loop.initialization",
    "dsconfig.resolver.policy",
    "transformers.models.llama.modeling_llama",
]
"""Imported once, those that exist, in the fork server, which does not see this ``sys.path``."""


_VISIBLE_DEVICES = "CARDS_BEFORE_HIDING"


def hide_gpus() -> None:
    """Hide GPUs from this process and its children; ranks can show them again."""
    if _VISIBLE_DEVICES not in os.environ:
        os.environ[_VISIBLE_DEVICES] = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def show_gpus() -> None:
    """Show the hidden GPUs, in a process that has not initialized CUDA."""
    shown = os.environ.pop(_VISIBLE_DEVICES, None)
    if shown == "all":
        del os.environ["CUDA_VISIBLE_DEVICES"]
    elif shown is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = shown


class RankError(RuntimeError):
    """A job raised on at least one rank; the message has each rank's traceback."""


class Ranks:
    """A group of ``size`` training processes.

    On CPU they are connected by gloo with one thread each; with ``cuda``, by NCCL with one GPU
    each. With fewer GPUs than processes, they share GPUs and use gloo. ``run("training.jobs:train",
    ...)`` calls the function on every rank with the keyword arguments and returns the results by
    rank.
    """

    def __init__(self, size: int = 2, device: str = "cpu") -> None:
        context = _context(device)
        port = reserved_port()
        self.closed = False
        self.is_crowded = False
        """Whether a rank has accumulated threads. Jobs of the same ranks cannot end them: torch's
        caches of DTensor refer to the groups of earlier meshes."""
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._known: dict[str, list[Any]] = {}
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, rank, size, port, device), daemon=device == "cpu"
            )  # loaders start worker processes, which daemons must not
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._results("start", self._answers(SECONDS))

    def run(self, job: str, *, seconds: float = SECONDS, **arguments: Any) -> list[Any]:
        """Run a job. Raises RankError if a rank raised, TimeoutError if one did not answer.

        ``seconds`` is its limit on an idle machine, from when no other ranks of this machine run.
        """
        with machine_for_ranks():
            for pipe in self._pipes:
                pipe.send((job, arguments, os.environ.get("PYTEST_CURRENT_TEST", "")))
            return self._results(job, self._answers(seconds))

    def _answers(self, seconds: float) -> dict[int, tuple[bool, Any]]:
        """Return whether each rank failed and what it sent, of those that answer in time."""
        answers: dict[int, tuple[bool, Any]] = {}
        end = monotonic() + scaled(seconds)
        while len(answers) < len(self._pipes):
            open_pipes = [p for rank, p in enumerate(self._pipes) if rank not in answers]
            ready = wait(open_pipes, max(0.0, end - monotonic()))
            if not ready:
                break
            for rank in [rank for rank, pipe in enumerate(self._pipes) if pipe in ready]:
                answers[rank] = self._received(rank)
                if answers[rank][0]:
                    end = min(end, monotonic() + scaled(GRACE))
        return answers

    def once(self, job: str, **arguments: Any) -> list[Any]:
        """Return the cached result of an equal request, or run it; for shared references."""
        request = repr((job, sorted(arguments.items())))
        if request not in self._known:
            self._known[request] = self.run(job, **arguments)
        return self._known[request]

    def _received(self, rank: int) -> tuple[bool, Any]:
        try:
            failed, value, threads = self._pipes[rank].recv()
            self.is_crowded |= threads > CROWDED
            return failed, value
        except (EOFError, ConnectionError):
            self._processes[rank].join(scaled(GRACE))
            return True, f"--- rank {rank}\nended, exit code {self._processes[rank].exitcode}"

    def _results(self, job: str, answers: dict[int, tuple[bool, Any]]) -> list[Any]:
        failures = [value for failed, value in answers.values() if failed]
        missing = sorted(set(range(len(self._pipes))) - answers.keys())
        if missing or 0 < len(failures) < len(self._pipes) or not self._alive():
            for rank in missing:
                self._processes[rank].kill()
            self.close()  # some may wait for others, or be one collective ahead
        if failures:
            raise RankError("\n".join(failures))
        if missing:
            raise TimeoutError(f"ranks {missing} did not finish {job}")
        return [answers[rank][1] for rank in range(len(self._pipes))]

    def is_usable(self) -> bool:
        """Whether all processes are running."""
        return not self.closed and self._alive()

    def _alive(self) -> bool:
        return all(process.is_alive() for process in self._processes)

    def close(self) -> None:
        self.closed = True
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(ENDING if os.environ.get("COVERAGE_PROCESS_START") else scaled(GRACE))
            if process.is_alive():
                process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SharedRanks:
    """Ranks by number, started on first use, and again if a job has ended or crowded them.

    Not for jobs that change global state of a process.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._device = device
        self._running: dict[tuple[int, str], Ranks] = {}
        self._file = ""

    def __call__(self, size: int = 2, device: str | None = None) -> Ranks:
        """Return the ranks; ``device`` overrides the default."""
        self._close_larger_of_earlier_file()
        kind = (size, device or self._device)
        running = self._running.get(kind)
        if running is not None and running.is_crowded:
            running.close()
        if running is None or not running.is_usable():
            running = self._running[kind] = Ranks(*kind)
        return running

    def _close_larger_of_earlier_file(self) -> None:
        """End the groups of more than two ranks that another test file has used."""
        file = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
        if file != self._file:
            self._file = file
            for kind in [kind for kind in self._running if kind[0] > 2]:
                self._running.pop(kind).close()

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
    hide_gpus() if device == "cpu" else show_gpus()
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(_backend(device, rank, size), rank=rank, world_size=size)
    environment, modules = dict(os.environ), 0
    pipe.send((False, None, _count_threads()))
    while True:
        try:
            job, arguments, test = pipe.recv()
        except EOFError:
            break
        _name_to_coverage(test)
        torch.manual_seed(0)
        answer = _answer(job, arguments, rank)
        pipe.send((*answer, _count_threads()))
        del answer
        _leave_clean(environment)
        if len(sys.modules) > modules:  # exclude imported modules from garbage collection
            modules = len(sys.modules)
            gc.freeze()
    dist.destroy_process_group()


def _count_threads() -> int:
    """Return the threads of this process, those of torch too; Linux lists them."""
    listed = Path("/proc/self/task")
    return len([*listed.iterdir()]) if listed.is_dir() else 0


def _backend(device: str, rank: int, size: int) -> str:
    if device == "cpu":
        return "gloo"
    import torch

    cards = torch.cuda.device_count()
    torch.cuda.set_device(rank % cards)
    if size <= cards:
        return "cpu:gloo,cuda:nccl"
    from training.shared_gpu import all_gather_with_lists

    all_gather_with_lists()
    return "cpu:gloo,cuda:gloo"


def _leave_clean(environment: dict[str, str]) -> None:
    """Restore the global state for the next job."""
    import torch

    os.environ.clear()
    os.environ.update(environment)
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
    gc.enable()
    gc.collect()
    attention = sys.modules.get("dsengine.parallel.transformers_attention")
    if attention is not None:  # a job may register it without an engine that restores it
        attention.restore_if_unused()


def _name_to_coverage(test: str) -> None:
    """Attribute recorded lines to this test, if coverage is recorded."""
    if os.environ.get("COVERAGE_PROCESS_START"):
        import coverage

        if recording := coverage.Coverage.current():
            recording.switch_context(test)


def _answer(job: str, arguments: dict[str, Any], rank: int) -> tuple[bool, Any]:
    module, _, function = job.partition(":")
    try:
        return False, getattr(importlib.import_module(module), function)(**arguments)
    except Exception:  # reported by the parent
        return True, f"--- rank {rank}\n{traceback.format_exc()}"
