"""System errors for offloaded states, on one of two ranks or on both."""

import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

import dsengine
from dsengine.tiers import memory
from training import models
from training.jobs import config, window

SMALL = {"sub_group_size": 2000}


def started(nvme: str | None = None, **zero: Any) -> Any:
    offload = {"device": "cpu"} if nvme is None else {"device": "nvme", "nvme_path": nvme}
    settings = config(2, zero={"offload_optimizer": offload, **SMALL, **zero})
    return dsengine.initialize(model=models.tied(), config=settings)[0]


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Limit the file size on rank 1, which acts like a full disk or a quota."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def checkpoint_cannot_be_written(folder: str) -> dict[str, Any]:
    """Fail a save on one rank; training and the earlier checkpoint remain usable."""
    engine = started(f"{folder}/nvme")
    window(engine, 0)
    engine.save_checkpoint(f"{folder}/saved", tag="before")
    expected = window(engine, 1)
    failed = ""
    with files_no_larger_than(8192):
        try:
            engine.save_checkpoint(f"{folder}/saved", tag="after")
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"
    after = window(engine, 2)
    engine.load_checkpoint(f"{folder}/saved")
    again = [window(engine, 1), window(engine, 2)]
    engine.destroy()
    return {
        "failed": failed,
        "expected": [expected, after],
        "again": again,
        "there": sorted(path.name for path in Path(folder, "saved").iterdir()),
    }


def step_ended_between_tiles(folder: str, device: str) -> list[str]:
    """Return the errors of a failed step, and of continuing and saving after it."""
    engine = started(f"{folder}/nvme" if device == "nvme" else None)
    window(engine, 0)
    engine.save_checkpoint(f"{folder}/{device}")
    calls, step = 0, engine.optimizer.step

    def fail_in_second_tile() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError("no more")
        step()

    with mock.patch.object(engine.optimizer, "step", fail_in_second_tile):
        errors = [_error_of(lambda: window(engine, 1))]
    errors.append(_error_of(lambda: window(engine, 2)))
    errors.append(_error_of(lambda: engine.save_checkpoint(f"{folder}/{device}")))
    engine.destroy()
    return errors


def _error_of(action: Callable[[], Any]) -> str:
    try:
        action()
    except (OSError, RuntimeError) as error:
        return str(error)
    return ""


def files_deleted(folder: str) -> list[list[float]]:
    """Losses with and without everything below ``nvme_path`` removed after two steps."""
    curves = []
    for removed in (False, True):
        engine = started(f"{folder}/nvme")
        losses = [window(engine, step) for step in range(2)]
        dist.barrier()
        if removed and dist.get_rank() == 0:
            shutil.rmtree(f"{folder}/nvme")
        dist.barrier()
        curves.append(losses + [window(engine, step) for step in range(2, 4)])
        engine.destroy()
    return curves


def nothing_pinned() -> str:
    """Return the error if page-locked memory is refused."""
    empty = torch.empty

    def refusing(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")
        return empty(*size, **options)

    with mock.patch.object(torch, "empty", refusing):
        try:
            memory.empty_on_host((1024, 1024), pin=True)
        except MemoryError as error:
            return str(error)
    return ""
