"""The optimizer of a whole checkpoint as DeepSpeed's stages divide it among ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsconfig import OPTIMIZER_CLASSES, Effective, optimizer_type
from dsengine import DEEPSPEED
from dsengine.checkpoints.deepspeed_layout import flat
from dsengine.checkpoints.deepspeed_layout.pickles import foreign
from dsengine.checkpoints.deepspeed_layout.whole import WholeCheckpoint
from dsengine.checkpoints.errors import CheckpointError
from dsengine.checkpoints.optimizer_state import moments_of

_SCALERS = "deepspeed.runtime.fp16.loss_scaler"
_FRAGMENT = ("deepspeed.utils.tensor_fragment", "fragment_address")


def optimizer_groups(saved: WholeCheckpoint, ranks: int) -> list[list[str]]:
    """The weights of each group, in the order of the buffers of ``ranks`` at stages 1 and 2.

    One without elements is in none, as DeepSpeed has it.
    """
    zero = saved.config.get("zero_optimization") or {}
    groups = [[name for name in g if saved.weights[name].numel()] for g in saved.group_names]
    if zero.get("round_robin_gradients"):
        return [[name for r in range(ranks) for name in group[r::ranks]] for group in groups]
    return groups


def whole_optimizer(saved: WholeCheckpoint) -> dict[str, Any]:
    """The optimizer at stage 0: states by number."""
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
class Divided:
    """An optimizer in flat buffers: ``buffers`` has the weights of each, in order.

    ``of_group``: for every group of the optimizer the numbers of its buffers.
    """

    saved: WholeCheckpoint
    ranks: int
    buffers: list[list[str]]
    of_group: list[list[int]]

    def masters(self, cut: Any) -> list[list[Tensor]]:
        """By buffer, then by rank: fp32 weights, divided by ``cut``."""
        weights = self.saved.weights
        return [cut([weights[n].float() for n in names], self.ranks) for names in self.buffers]

    def states(self, cut: Any) -> Iterator[dict[str, Any]]:
        """For each rank, the optimizer's state dict."""
        divided = [
            {entry: cut(values, self.ranks) for entry, values in self._entries(names).items()}
            for names in self.buffers
        ]
        scalars = [self._once(names) for names in self.buffers]
        groups = [
            _options(self.saved, i) | {"params": numbers} for i, numbers in enumerate(self.of_group)
        ]
        for rank in range(self.ranks):
            states = {
                number: {entry: pieces[rank] for entry, pieces in entries.items()} | scalars[number]
                for number, entries in enumerate(divided)
                if entries or scalars[number]
            }
            yield {"state": states, "param_groups": groups}

    def _entries(self, names: Sequence[str]) -> dict[str, list[Tensor]]:
        """The states with one element for each of a weight; zeros where none was made yet."""
        weights, states = self.saved.weights, self.saved.optimizer_states
        found = {name: _buffers(self.saved, states.get(name, {})) for name in names}
        kinds = {entry: value.dtype for each in found.values() for entry, value in each.items()}
        for name, each in found.items():
            for entry, value in each.items():
                if value.numel() != weights[name].numel():
                    raise CheckpointError(
                        f"{entry} of {name} has another shape than its weight, and ZeRO keeps one "
                        "value for each: only stage 0 has a place for it"
                    )
        return {
            entry: [
                found[name].get(entry, torch.zeros_like(weights[name], dtype=kind))
                for name in names
            ]
            for entry, kind in kinds.items()
        }

    def _once(self, names: Sequence[str]) -> dict[str, Any]:
        """What a flat buffer has once, such as the count of steps."""
        states = (self.saved.optimizer_states.get(name) for name in names)
        return next((_scalars(self.saved, state) for state in states if state), {})


def flat_stage(saved: WholeCheckpoint, stage: int, ranks: int) -> Iterator[dict[str, Any]]:
    """Stages 1 and 2: for each rank what it has of every group."""
    groups = optimizer_groups(saved, ranks)
    divided = Divided(saved, ranks, groups, [[i] for i in range(len(groups))])
    masters = divided.masters(flat.flat_pieces)
    sizes = {name: saved.weights[name].numel() for group in groups for name in group}
    lengths = [pieces[0].numel() for pieces in masters]
    gaps = [
        n * ranks - sum(sizes[name] for name in g) for n, g in zip(lengths, groups, strict=True)
    ]
    places = [flat.slices(g, sizes, n) for g, n in zip(groups, lengths, strict=True)]
    for rank, state in enumerate(divided.states(flat.flat_pieces)):
        padding = gaps if rank == ranks - 1 else [0] * len(groups)
        yield {
            **_scale(saved),
            "base_optimizer_state": state,
            "single_partition_of_fp32_groups": [
                pieces[rank][: max(pieces[rank].numel() - gap, 0)].clone()
                for pieces, gap in zip(masters, padding, strict=True)
            ],
            "zero_stage": stage,
            "group_paddings": padding,
            "param_alignment_paddings": [[0] * len(group) for group in groups],
            "partition_count": [ranks] * len(groups),
            "ds_version": DEEPSPEED,
            "param_slice_mappings": [_fragments(each, rank) for each in places],
        }


def stage_3(saved: WholeCheckpoint, ranks: int) -> Iterator[dict[str, Any]]:
    """Stage 3: for each rank its pieces of every weight, sub-group by sub-group."""
    zero = saved.config.get("zero_optimization") or {}
    limit = int(zero.get("sub_group_size") or Effective(batch=None).zero.sub_group_size)
    buffers: list[list[str]] = []
    of_group: list[list[int]] = []
    for group in optimizer_groups(saved, 1):
        pieces = [-(-saved.weights[name].numel() // ranks) for name in group]
        parts = flat.sub_groups(group, pieces, limit)
        of_group.append([len(buffers) + i for i in range(len(parts))])
        buffers += parts
    divided = Divided(saved, ranks, buffers, of_group)
    masters = divided.masters(flat.own_pieces)
    for rank, state in enumerate(divided.states(flat.own_pieces)):
        yield {
            "zero_stage": 3,
            **_scale(saved),
            "partition_count": ranks,
            "optimizer_state_dict": state,
            "fp32_flat_groups": [pieces[rank] for pieces in masters],
        }


def _fragments(places: Sequence[dict[str, tuple[int, int]]], rank: int) -> dict[str, Any]:
    here = places[rank] if rank < len(places) else {}
    return {name: foreign(*_FRAGMENT, numel=n, start=start) for name, (n, start) in here.items()}


def _scale(saved: WholeCheckpoint) -> dict[str, Any]:
    """The loss scale as the object of DeepSpeed's that its engine goes on with."""
    known = saved.loss_scale
    dynamic = saved.dtype == torch.float16 and "scale_window" in known
    if dynamic:
        more = {"scale_factor": 2.0, "raise_error_at_min_scale": True, "dtype": torch.float16}
        scaler = foreign(_SCALERS, "DynamicLossScaler", **(more | known | {"dynamic": True}))
    else:
        scale = float(known.get("cur_scale", 1.0))
        scaler = foreign(_SCALERS, "LossScaler", cur_scale=scale, dynamic=False)
    return {"loss_scaler": scaler, "dynamic_loss_scale": dynamic, "overflow": False}


def _options(saved: WholeCheckpoint, number: int) -> dict[str, Any]:
    """A group's options, with what DeepSpeed's own classes look for in it."""
    return ({} if _is_of_torch(saved) else {"bias_correction": True}) | saved.groups[number]


def _buffers(saved: WholeCheckpoint, state: dict[str, Any]) -> dict[str, Tensor]:
    """The states with an element for each of a weight, one without a dimension too."""
    named = (saved.config.get("optimizer") or {}).get("type")
    moments = moments_of(saved.optimizer_type or named or "") or set()
    return {
        entry: value
        for entry, value in state.items()
        if isinstance(value, Tensor) and (value.dim() or entry in moments)
    }


def _scalars(saved: WholeCheckpoint, state: dict[str, Any]) -> dict[str, Any]:
    """The states that are one number; DeepSpeed's own classes count steps in integers."""
    buffers = _buffers(saved, state)
    found = {entry: value for entry, value in state.items() if entry not in buffers}
    if "step" in found:
        step = float(found["step"])
        found["step"] = torch.tensor(step) if _is_of_torch(saved) else int(step)
    return found


def _is_of_torch(saved: WholeCheckpoint) -> bool:
    """Whether DeepSpeed updates with a class of torch, by the config or else by the script."""
    if any("bias_correction" in group for group in saved.groups):  # an option of its own classes
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
