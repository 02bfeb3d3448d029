"""Partitioning the optimizer of a full checkpoint as DeepSpeed's stages do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsconfig import OPTIMIZER_CLASSES, Effective, optimizer_type
from dsengine.checkpoints.deepspeed_layout import flat
from dsengine.checkpoints.deepspeed_layout.full_checkpoint import FullCheckpoint
from dsengine.checkpoints.deepspeed_layout.pickles import foreign
from dsengine.checkpoints.errors import CheckpointError
from dsengine.checkpoints.optimizer_state import moments_of
from dsengine.release import DEEPSPEED

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
