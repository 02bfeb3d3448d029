"""Writing a checkpoint in DeepSpeed's files, for a given stage and world size.

DeepSpeed's partitions can only be written by a process that has the full state. So all ranks first
save dsengine's own checkpoint in a hidden directory, and rank 0 converts it. Nothing is visible
before the conversion is complete.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dsengine.checkpoints.deepspeed_layout.files import model_file, optimizer_file
from dsengine.checkpoints.deepspeed_layout.flat import split_each
from dsengine.checkpoints.deepspeed_layout.full_checkpoint import FullCheckpoint, own_checkpoint
from dsengine.checkpoints.deepspeed_layout.partitions import (
    flat_stage,
    full_optimizer,
    optimizer_groups,
    stage_3,
)
from dsengine.checkpoints.deepspeed_layout.pickles import write_file
from dsengine.checkpoints.deepspeed_layout.read import COUNTERS, KNOWN
from dsengine.checkpoints.directory import PendingCheckpoint, discard
from dsengine.checkpoints.errors import CheckpointError
from dsengine.checkpoints.group import CheckpointGroup
from dsengine.checkpoints.recovery_scripts import NAMES
from dsengine.checkpoints.save import Snapshot, publish, write
from dsengine.release import DEEPSPEED


def write_checkpoint(
    saved: FullCheckpoint, root: Path, tag: str, stage: int | None = None, ranks: int | None = None
) -> Path:
    """Write ``root/tag`` and ``root/latest``, as DeepSpeed reads them at ``stage`` on ``ranks``.

    Stage and ranks default to those of ``saved``. Raises CheckpointError if ``root/tag`` exists,
    or if ``saved`` cannot be represented in DeepSpeed's files.
    """
    stage, ranks = saved.stage if stage is None else stage, ranks or saved.world_size
    if os.path.lexists(root / tag):
        raise CheckpointError(f"{root / tag} exists: choose another folder, or remove it")
    _check(saved, stage)
    with PendingCheckpoint(root, tag) as pending:
        _write_files(saved, pending.create(), stage, ranks)
        return publish(pending, stage, save_latest=True)


def save_for_deepspeed(
    snapshot: Snapshot, group: CheckpointGroup, root: Path, *, save_latest: bool
) -> Path:
    """Write ``root/tag`` as DeepSpeed reads it at the run's stage and world size. Collective.

    Rank 0 needs host memory for the full state. Raises CheckpointError on every rank if it cannot
    be represented in DeepSpeed's files, or if any rank could not write.
    """
    tag = snapshot.manifest.tag
    with PendingCheckpoint(root, tag) as pending:
        created = group.run_on_coordinator(pending.create, f"preparing {root}")
        own = write(snapshot, group, root / created.name, save_latest=False, keep=None)

        def convert() -> Path:
            saved = own_checkpoint(own)
            discard(own)
            for name in NAMES:
                (pending.directory / name).unlink(missing_ok=True)
            _write_files(saved, pending.directory, saved.stage, saved.world_size)
            return publish(pending, saved.stage, save_latest=save_latest)

        return group.run_on_coordinator(convert, f"saving checkpoint {root / tag}")


def _write_files(saved: FullCheckpoint, folder: Path, stage: int, ranks: int) -> None:
    """Write the files of a DeepSpeed tag directory into ``folder``.

    Raises CheckpointError if ``saved`` cannot be represented in them.
    """
    _check(saved, stage)
    saved = _without_empty_groups(saved)
    zero = (saved.config.get("zero_optimization") or {}) | {"stage": stage}
    common = {"ds_config": saved.config | {"zero_optimization": zero}, "ds_version": DEEPSPEED}
    for name, content in _files(saved, stage, ranks):
        write_file(content | common, folder / name)


def _without_empty_groups(saved: FullCheckpoint) -> FullCheckpoint:
    """Drop groups without elements, as DeepSpeed does."""
    numbers = [
        number
        for number, group in enumerate(saved.group_names)
        if any(saved.weights[name].numel() for name in group)
    ]
    if len(numbers) == len(saved.group_names):
        return saved
    return replace(
        saved,
        groups=[saved.groups[number] for number in numbers],
        group_names=[saved.group_names[number] for number in numbers],
    )


def _check(saved: FullCheckpoint, stage: int) -> None:
    reserved = sorted(KNOWN & saved.client_state.keys())
    if reserved:
        raise CheckpointError(f"client_state has keys reserved by DeepSpeed: {', '.join(reserved)}")
    if stage == 0 and saved.dtype != torch.float32:
        raise CheckpointError(
            "DeepSpeed's files of stage 0 cannot contain the fp32 master weights of a 16-bit run: "
            "convert for stage 1, 2 or 3"
        )
    if stage and not saved.group_names:
        raise CheckpointError(
            f"{saved.path} does not map its optimizer's states to weights: convert for stage 0"
        )


def _files(saved: FullCheckpoint, stage: int, ranks: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every file name with its contents, created lazily."""
    if stage == 0:
        yield model_file(), _model(saved, 0, ranks, 0)
        return
    prefix = "bf16_" if saved.dtype == torch.bfloat16 else ""
    states = stage_3(saved, ranks) if stage == 3 else flat_stage(saved, stage, ranks)
    for rank, state in enumerate(states):
        if stage == 3 or rank == 0:
            yield model_file(rank if stage == 3 else None), _model(saved, stage, ranks, rank)
        yield optimizer_file(rank, prefix), {"optimizer_state_dict": state}


def _model(saved: FullCheckpoint, stage: int, ranks: int, rank: int) -> dict[str, Any]:
    """Return the contents of a model file: the states of the model and of the run."""
    groups = optimizer_groups(saved, ranks if stage in (1, 2) else 1)
    others = {*saved.buffers, *saved.tied, *(name for group in groups for name in group)}
    weights = {
        name: tensor.to(saved.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in saved.weights.items()
        if name not in saved.buffers
    }
    frozen = {name: tensor for name, tensor in weights.items() if name not in others}
    shapes = {name: tensor.shape for name, tensor in frozen.items()}
    if stage == 3:
        frozen = {name: split_each([tensor], ranks)[rank] for name, tensor in frozen.items()}
        weights = {name: tensor.new_empty(0) for name, tensor in weights.items()}
    buffers = {name: saved.weights[name] for name in saved.buffers}
    return {
        "module": weights | buffers,
        "buffer_names": list(buffers),
        "optimizer": None if stage else full_optimizer(saved),
        "param_shapes": [{n: saved.weights[n].shape for n in g} for g in groups] if stage else None,
        "frozen_param_shapes": shapes if stage else None,
        "shared_params": dict(saved.tied) if stage else None,
        "frozen_param_fragments": frozen if stage else None,
        "lr_scheduler": saved.lr_scheduler,
        "data_sampler": None,
        "random_ltd": None,
        "sparse_tensor_module_names": [],
        **{name: saved.counters.get(name, 0) for name in COUNTERS},
        "dp_world_size": ranks,
        "mp_world_size": 1,
        "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 1},
        **saved.client_state,
    }
