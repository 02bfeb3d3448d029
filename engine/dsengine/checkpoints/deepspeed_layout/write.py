"""A checkpoint in DeepSpeed's own files, for a stage and a number of ranks.

Only who has the whole of a run can lay it out as DeepSpeed does, by ranks of its own counting. So a
run that is saved in these files is saved in ours first, aside, by all ranks, and rank 0 reads what
all have written. Nothing of that is visible before it is whole in DeepSpeed's form.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dsengine import DEEPSPEED
from dsengine.checkpoints.deepspeed_layout.files import model_file, optimizer_file
from dsengine.checkpoints.deepspeed_layout.flat import own_pieces
from dsengine.checkpoints.deepspeed_layout.partitions import (
    flat_stage,
    optimizer_groups,
    stage_3,
    whole_optimizer,
)
from dsengine.checkpoints.deepspeed_layout.pickles import write_file
from dsengine.checkpoints.deepspeed_layout.read import COUNTERS, KNOWN
from dsengine.checkpoints.deepspeed_layout.whole import WholeCheckpoint, own_checkpoint
from dsengine.checkpoints.directory import Writing, discard
from dsengine.checkpoints.errors import CheckpointError
from dsengine.checkpoints.group import CheckpointGroup
from dsengine.checkpoints.recovery_scripts import NAMES
from dsengine.checkpoints.save import Snapshot, publish, write


def write_checkpoint(
    saved: WholeCheckpoint, root: Path, tag: str, stage: int | None = None, ranks: int | None = None
) -> Path:
    """Write ``root/tag`` and ``root/latest``, as DeepSpeed reads them at ``stage`` on ``ranks``.

    Without these the stage and the number of ranks stay what they were. Raises CheckpointError
    where ``root/tag`` exists, and for what DeepSpeed's files have no place for.
    """
    stage, ranks = saved.stage if stage is None else stage, ranks or saved.world_size
    if (root / tag).exists():
        raise CheckpointError(f"{root / tag} exists: choose another folder, or remove it")
    _check(saved, stage)
    with Writing(root, tag) as writing:
        _write_files(saved, writing.begin(), stage, ranks)
        return publish(writing, stage, save_latest=True)


def save_for_deepspeed(
    snapshot: Snapshot, group: CheckpointGroup, root: Path, *, save_latest: bool
) -> Path:
    """Write ``root/tag`` as DeepSpeed reads it at this stage on this many ranks. Collective.

    All of it is in the memory of rank 0 meanwhile. Raises CheckpointError on every rank for what
    DeepSpeed's files have no place for, and where any rank could not write.
    """
    tag = snapshot.manifest.tag
    with Writing(root, tag) as writing:
        begun = group.run_on_coordinator(writing.begin, f"preparing {root}")
        own = write(snapshot, group, root / begun.name, save_latest=False, keep=None)

        def convert() -> Path:
            saved = own_checkpoint(own)
            discard(own)
            for name in NAMES:
                (writing.aside / name).unlink(missing_ok=True)
            _write_files(saved, writing.aside, saved.stage, saved.world_size)
            return publish(writing, saved.stage, save_latest=save_latest)

        return group.run_on_coordinator(convert, f"saving checkpoint {root / tag}")


def _write_files(saved: WholeCheckpoint, folder: Path, stage: int, ranks: int) -> None:
    """Write into ``folder`` what DeepSpeed has in that of a tag.

    Raises CheckpointError for what its files have no place for.
    """
    _check(saved, stage)
    saved = _without_empty_groups(saved)
    zero = (saved.config.get("zero_optimization") or {}) | {"stage": stage}
    by = {"ds_config": saved.config | {"zero_optimization": zero}, "ds_version": DEEPSPEED}
    for name, content in _files(saved, stage, ranks):
        write_file(content | by, folder / name)


def _without_empty_groups(saved: WholeCheckpoint) -> WholeCheckpoint:
    """DeepSpeed leaves groups without a weight out of the optimizer."""
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


def _check(saved: WholeCheckpoint, stage: int) -> None:
    taken = sorted(KNOWN & saved.client_state.keys())
    if taken:
        raise CheckpointError(f"client_state has {', '.join(taken)}, names that DeepSpeed uses")
    if stage == 0 and saved.dtype != torch.float32:
        raise CheckpointError(
            "DeepSpeed's files of stage 0 have no place for the fp32 masters of a run in 16 bits: "
            "write them for stage 1, 2 or 3"
        )
    if stage and not saved.group_names:
        raise CheckpointError(
            f"{saved.path} does not say of which weights its optimizer's states are: write it for "
            "stage 0"
        )


def _files(saved: WholeCheckpoint, stage: int, ranks: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name every file, with what it holds; none is made before it is asked for."""
    if stage == 0:
        yield model_file(), _model(saved, 0, ranks, 0)
        return
    prefix = "bf16_" if saved.dtype == torch.bfloat16 else ""
    states = stage_3(saved, ranks) if stage == 3 else flat_stage(saved, stage, ranks)
    for rank, state in enumerate(states):
        if stage == 3 or rank == 0:
            yield model_file(rank if stage == 3 else None), _model(saved, stage, ranks, rank)
        yield optimizer_file(rank, prefix), {"optimizer_state_dict": state}


def _model(saved: WholeCheckpoint, stage: int, ranks: int, rank: int) -> dict[str, Any]:
    """What the file beside the optimizer's holds: the model's states and the run's."""
    groups = optimizer_groups(saved, ranks if stage in (1, 2) else 1)
    beside = {*saved.buffers, *saved.tied, *(name for group in groups for name in group)}
    weights = {
        name: tensor.to(saved.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in saved.weights.items()
        if name not in saved.buffers
    }
    frozen = {name: tensor for name, tensor in weights.items() if name not in beside}
    shapes = {name: tensor.shape for name, tensor in frozen.items()}
    if stage == 3:
        frozen = {name: own_pieces([tensor], ranks)[rank] for name, tensor in frozen.items()}
        weights = {name: tensor.new_empty(0) for name, tensor in weights.items()}
    buffers = {name: saved.weights[name] for name in saved.buffers}
    return {
        "module": weights | buffers,
        "buffer_names": list(buffers),
        "optimizer": None if stage else whole_optimizer(saved),
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
