"""What the system refuses to states below the device, on one of two ranks or on both."""

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
    place = {"device": "cpu"} if nvme is None else {"device": "nvme", "nvme_path": nvme}
    chosen = config(2, zero={"offload_optimizer": place, **SMALL, **zero})
    return dsengine.initialize(model=models.tied(), config=chosen)[0]


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """On rank 1; the system then refuses what a full disk would, and what a quota does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def no_room_for_a_checkpoint(folder: str) -> dict[str, Any]:
    """A save fails on one rank; what was saved before, and the training, go on."""
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
        "there": sorted(each.name for each in Path(folder, "saved").iterdir()),
    }


def step_ended_between_tiles(folder: str, device: str) -> list[str]:
    """What a script that has caught that is told, when it goes on, saves or loads."""
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
        said = [_said(lambda: window(engine, 1))]
    said.append(_said(lambda: window(engine, 2)))
    said.append(_said(lambda: engine.save_checkpoint(f"{folder}/{device}")))
    engine.destroy()
    return said


def _said(action: Callable[[], Any]) -> str:
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
    """What a rank says to whom page-locked memory is refused."""
    empty = torch.empty

    def refusing(*size: Any, pin_memory: bool = False, **more: Any) -> torch.Tensor:
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")
        return empty(*size, **more)

    with mock.patch.object(torch, "empty", refusing):
        try:
            memory.empty_on_host((1024, 1024), pin=True)
        except MemoryError as error:
            return str(error)
    return ""
