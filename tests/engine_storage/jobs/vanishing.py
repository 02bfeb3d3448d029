"""Loads during which another job publishes a checkpoint and removes the chosen one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader

from dsengine.checkpoints import choice, load
from dsengine.checkpoints.directory import LATEST, remove_tag, write_latest
from engine_storage.jobs.engine_run import started

OLD, CHOSEN, NEW = "global_step1", "global_step2", "global_step3"


def fill(engine: Any, value: float) -> None:
    with torch.no_grad():
        for parameter in engine.module.parameters():
            parameter.fill_(value)


def values(engine: Any) -> list[float]:
    return sorted({v for p in engine.module.parameters() for v in p.to_local().unique().tolist()})


def after_first(function: Callable[..., Any], action: Callable[[], None]) -> Callable[..., Any]:
    """Return ``function`` with ``action`` after its first call."""
    pending = [action]

    def wrapped(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        if pending:
            pending.pop()()
        return result

    return wrapped


def before_first(function: Callable[..., Any], action: Callable[[], None]) -> Callable[..., Any]:
    pending = [action]

    def wrapped(*arguments: Any, **named: Any) -> Any:
        if pending:
            pending.pop()()
        return function(*arguments, **named)

    return wrapped


def outcome(folder: str, moment: str, by_replacing: bool) -> Any:
    """Load while the chosen checkpoint is removed at a moment; return path, client state, weights.

    ``by_replacing``: another save under the same tag removes it.
    """
    engine, root, spare = started(3, seed=1), Path(folder), Path(folder, "spare")
    published = CHOSEN if by_replacing else NEW
    for number, (where, tag) in enumerate(((root, OLD), (root, CHOSEN), (spare, published)), 1):
        fill(engine, number)
        engine.save_checkpoint(where, tag=tag, client_state={"number": number})
    fill(engine, 0)

    def publish() -> None:
        if dist.get_rank() == 0:
            remove_tag(root, CHOSEN)
            if moment != "latest is not updated":
                (spare / published).rename(root / published)
                write_latest(root, published)

    def on_all_ranks() -> None:
        dist.barrier()
        publish()
        dist.barrier()

    patches = {
        "chosen": mock.patch.object(choice, "choose", after_first(choice.choose, publish)),
        "latest is not updated": mock.patch.object(
            choice, "choose", after_first(choice.choose, publish)
        ),
        "opened": mock.patch.object(
            load, "read_manifest", after_first(load.read_manifest, on_all_ranks)
        ),
        "checked": mock.patch.object(
            FileSystemReader, "read_data", before_first(FileSystemReader.read_data, on_all_ranks)
        ),
    }
    with patches[moment]:
        path, client_state = engine.load_checkpoint(root)
    result = (path, (client_state or {}).get("number"), values(engine))
    assert (root / LATEST).exists()
    engine.destroy()
    return result
