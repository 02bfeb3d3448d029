"""Writing a checkpoint in DeepSpeed's files, for a given stage and world size.

DeepSpeed's partitions can only be written by a process that has the full state. So all ranks first
save dsengine's own checkpoint in a hidden directory, and rank 0 converts it. Nothing is visible
before the conversion is complete.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsconfig import OPTIMIZER_CLASSES, Effective, optimizer_type
from dsengine.checkpoints.deepspeed_layout import flat
from dsengine.checkpoints.deepspeed_layout.files import (
    foreign,
    model_file,
    optimizer_file,
    write_file,
)
from dsengine.checkpoints.deepspeed_layout.flat import split_each
from dsengine.checkpoints.deepspeed_layout.full_checkpoint import FullCheckpoint, own_checkpoint
from dsengine.checkpoints.deepspeed_layout.read import COUNTERS, KNOWN
from dsengine.checkpoints.directory import PendingCheckpoint, discard
from dsengine.checkpoints.group import CheckpointError, CheckpointGroup
from dsengine.checkpoints.save import RECOVERY_SCRIPTS, Snapshot, publish, write
from dsengine.checkpoints.state import moments_of
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
            for name in RECOVERY_SCRIPTS:
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


_SCALERS = "deepspeed.runtime.fp16.loss_scaler"
_FRAGMENT = ("deepspeed.utils.tensor_fragment", "fragment_address")


def optimizer_groups(saved: FullCheckpoint, ranks: int) -> list[list[str]]:
    """Return the weights of each group, in the order of the buffers at stages 1 and 2.

    Weights without elements are left out, as in DeepSpeed.
    """
    zero = saved.config.get("zero_optimization") or {}
    groups = [[name for name in g if saved.weights[name].numel()] for g in saved.group_names]
    if zero.get("round_robin_gradients"):
        return [[name for r in range(ranks) for name in group[r::ranks]] for group in groups]
    return groups


def full_optimizer(saved: FullCheckpoint) -> dict[str, Any]:
    """Return the optimizer's state dict at stage 0, with states by number."""
    names = [name for group in saved.group_names for name in group]
    number = {name: i for i, name in enumerate(names)}
    states = saved.optimizer_states
    return {
        "state": {
            number[name]: {**_buffers(saved, state), **_scalars(saved, state)}
            for name, state in states.items()
            if name in number
        },
        "param_groups": [
            _options(saved, i) | {"params": [number[name] for name in group]}
            for i, group in enumerate(saved.group_names)
        ],
    }


@dataclass(frozen=True, slots=True)
class Partitioned:
    """An optimizer in flat buffers. ``buffers``: the weights of each buffer, in order.

    ``group_buffers``: per parameter group, the numbers of its buffers.
    """

    saved: FullCheckpoint
    ranks: int
    buffers: list[list[str]]
    group_buffers: list[list[int]]

    def masters(self, split: Any) -> list[list[Tensor]]:
        """Return fp32 weights by buffer, then by rank, partitioned by ``split``."""
        weights = self.saved.weights
        return [split([weights[n].float() for n in names], self.ranks) for names in self.buffers]

    def states(self, split: Any) -> Iterator[dict[str, Any]]:
        """Yield each rank's state dict of the optimizer."""
        partitioned = [
            {entry: split(values, self.ranks) for entry, values in self._entries(names).items()}
            for names in self.buffers
        ]
        scalars = [self._buffer_scalars(names) for names in self.buffers]
        groups = [
            _options(self.saved, i) | {"params": numbers}
            for i, numbers in enumerate(self.group_buffers)
        ]
        for rank in range(self.ranks):
            states = {
                number: {entry: parts[rank] for entry, parts in entries.items()} | scalars[number]
                for number, entries in enumerate(partitioned)
                if entries or scalars[number]
            }
            yield {"state": states, "param_groups": groups}

    def _entries(self, names: Sequence[str]) -> dict[str, list[Tensor]]:
        """Return the per-element states of the weights; zeros for missing ones."""
        weights, states = self.saved.weights, self.saved.optimizer_states
        saved = {name: _buffers(self.saved, states.get(name, {})) for name in names}
        dtypes = {entry: value.dtype for state in saved.values() for entry, value in state.items()}
        for name, state in saved.items():
            for entry, value in state.items():
                if value.numel() != weights[name].numel():
                    raise CheckpointError(
                        f"{entry} of {name} differs in shape from its weight, which ZeRO does not "
                        "support: convert for stage 0"
                    )
        return {
            entry: [
                saved[name].get(entry, torch.zeros_like(weights[name], dtype=dtype))
                for name in names
            ]
            for entry, dtype in dtypes.items()
        }

    def _buffer_scalars(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the states that a flat buffer has once, such as the step count."""
        states = (self.saved.optimizer_states.get(name) for name in names)
        return next((_scalars(self.saved, state) for state in states if state), {})


def flat_stage(saved: FullCheckpoint, stage: int, ranks: int) -> Iterator[dict[str, Any]]:
    """Yield each rank's partitions of every group (stages 1 and 2)."""
    groups = optimizer_groups(saved, ranks)
    partitioned = Partitioned(saved, ranks, groups, [[i] for i in range(len(groups))])
    masters = partitioned.masters(flat.split_group)
    sizes = {name: saved.weights[name].numel() for group in groups for name in group}
    lengths = [partitions[0].numel() for partitions in masters]
    gaps = [
        n * ranks - sum(sizes[name] for name in g) for n, g in zip(lengths, groups, strict=True)
    ]
    slices = [flat.slices(g, sizes, n) for g, n in zip(groups, lengths, strict=True)]
    for rank, state in enumerate(partitioned.states(flat.split_group)):
        padding = gaps if rank == ranks - 1 else [0] * len(groups)
        yield {
            **_scale(saved),
            "base_optimizer_state": state,
            "single_partition_of_fp32_groups": [
                partitions[rank][: max(partitions[rank].numel() - gap, 0)].clone()
                for partitions, gap in zip(masters, padding, strict=True)
            ],
            "zero_stage": stage,
            "group_paddings": padding,
            "param_alignment_paddings": [[0] * len(group) for group in groups],
            "partition_count": [ranks] * len(groups),
            "ds_version": DEEPSPEED,
            "param_slice_mappings": [_fragments(by_rank, rank) for by_rank in slices],
        }


def stage_3(saved: FullCheckpoint, ranks: int) -> Iterator[dict[str, Any]]:
    """Yield each rank's partition of every weight, by sub-group (stage 3)."""
    zero = saved.config.get("zero_optimization") or {}
    limit = int(zero.get("sub_group_size") or Effective(batch=None).zero.sub_group_size)
    buffers: list[list[str]] = []
    group_buffers: list[list[int]] = []
    for group in optimizer_groups(saved, 1):
        sizes = [-(-saved.weights[name].numel() // ranks) for name in group]
        sub_groups = flat.sub_groups(group, sizes, limit)
        group_buffers.append([len(buffers) + i for i in range(len(sub_groups))])
        buffers += sub_groups
    partitioned = Partitioned(saved, ranks, buffers, group_buffers)
    masters = partitioned.masters(flat.split_each)
    for rank, state in enumerate(partitioned.states(flat.split_each)):
        yield {
            "zero_stage": 3,
            **_scale(saved),
            "partition_count": ranks,
            "optimizer_state_dict": state,
            "fp32_flat_groups": [partitions[rank] for partitions in masters],
        }


def _fragments(slices: Sequence[dict[str, tuple[int, int]]], rank: int) -> dict[str, Any]:
    own = slices[rank] if rank < len(slices) else {}
    return {name: foreign(*_FRAGMENT, numel=n, start=start) for name, (n, start) in own.items()}


def _scale(saved: FullCheckpoint) -> dict[str, Any]:
    """Return the loss scale as an object of DeepSpeed's class."""
    known = saved.loss_scale
    dynamic = saved.dtype == torch.float16 and "scale_window" in known
    if dynamic:
        more = {"scale_factor": 2.0, "raise_error_at_min_scale": True, "dtype": torch.float16}
        scaler = foreign(_SCALERS, "DynamicLossScaler", **(more | known | {"dynamic": True}))
    else:
        scale = float(known.get("cur_scale", 1.0))
        scaler = foreign(_SCALERS, "LossScaler", cur_scale=scale, dynamic=False)
    return {"loss_scaler": scaler, "dynamic_loss_scale": dynamic, "overflow": False}


def _options(saved: FullCheckpoint, number: int) -> dict[str, Any]:
    """Return a group's options, with those that DeepSpeed's own classes require."""
    return ({} if _is_of_torch(saved) else {"bias_correction": True}) | saved.groups[number]


def _buffers(saved: FullCheckpoint, state: dict[str, Any]) -> dict[str, Tensor]:
    """Return the per-element states, including those of zero-dimensional weights."""
    named = (saved.config.get("optimizer") or {}).get("type")
    moments = moments_of(saved.optimizer_type or named or "") or set()
    return {
        entry: value
        for entry, value in state.items()
        if isinstance(value, Tensor) and (value.dim() or entry in moments)
    }


def _scalars(saved: FullCheckpoint, state: dict[str, Any]) -> dict[str, Any]:
    """Return the scalar states; DeepSpeed's own classes count steps in integers."""
    buffers = _buffers(saved, state)
    scalars = {entry: value for entry, value in state.items() if entry not in buffers}
    if "step" in scalars:
        step = float(scalars["step"])
        scalars["step"] = torch.tensor(step) if _is_of_torch(saved) else int(step)
    return scalars


def _is_of_torch(saved: FullCheckpoint) -> bool:
    """Whether DeepSpeed uses a class of torch, according to the config or the script."""
    if any("bias_correction" in group for group in saved.groups):  # only in DeepSpeed's classes
        return False
    named = saved.config.get("optimizer") or {}
    known = optimizer_type(named.get("type") or "")
    if known is None:
        kind = OPTIMIZER_CLASSES.get(saved.optimizer_type or "")
        return kind is None or kind.is_torch
    zero = saved.config.get("zero_optimization") or {}
    device = (zero.get("offload_optimizer") or {}).get("device", "none")
    built = known.class_in_deepspeed(named.get("params") or {}, offloaded=device != "none")
    return OPTIMIZER_CLASSES[built].is_torch
