"""Loading a DeepSpeed checkpoint at any stage and world size."""

from collections.abc import Mapping
from os import PathLike
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dsengine.checkpoints.deepspeed_layout.full_checkpoint import LOSS_SCALE_NAMES, FullCheckpoint
from dsengine.checkpoints.deepspeed_layout.read import read_checkpoint
from dsengine.checkpoints.group import CheckpointGroup, CheckpointMismatchError
from dsengine.checkpoints.manifest import check_weights, shapes
from dsengine.checkpoints.state import (
    NamedOptimizer,
    TrainingState,
    has_elements,
    name_and_entry,
    state_key,
)
from dsengine.parameters.names import units_resharded
from dsengine.parameters.shards import copy_local_slice

_States = dict[str, dict[str, Any]]
"""The optimizer's full states by parameter name."""


def load_deepspeed_checkpoint(
    state: TrainingState,
    path: str | PathLike[str],
    tag: str | None = None,
    *,
    group: CheckpointGroup,
    strict: bool = True,
    optimizer_states: bool = True,
    lr_scheduler_states: bool = True,
    module_only: bool = False,
) -> tuple[str, dict[str, Any]]:
    """Load weights, optimizer, schedule, loss scale and counters; return (path, client state).

    Raises CheckpointError or CheckpointMismatchError on every rank before anything is changed.
    """
    action = f"loading DeepSpeed checkpoint {path}"
    with_optimizer = optimizer_states and not module_only

    def prepare() -> tuple[FullCheckpoint, _States, dict[str, Tensor]]:
        saved = read_checkpoint(path, tag)
        tied = state.tied()
        weights = {name: tensor for name, tensor in saved.weights.items() if name not in tied}
        check_weights(shapes(weights), state.weights(), strict=strict)
        optimizer = state.named_optimizer() if with_optimizer else None
        if optimizer is None:
            return saved, {}, {}
        states = _states(optimizer, saved)
        return saved, states, _targets(state, optimizer, states)

    saved, states, targets = group.run(prepare, action)
    optimizer = state.named_optimizer() if with_optimizer else None
    with torch.no_grad(), units_resharded(state.module):
        for name, target in state.weights().items():
            if name in saved.weights:
                copy_local_slice(target, saved.weights[name])
        for key, tensor in _tensors(states).items():
            if key in targets:
                copy_local_slice(targets[key], tensor)
        if optimizer is not None and targets:
            optimizer.adopt(targets, keep=True)
        state.refresh_parameters()
    if not module_only:
        values = None if optimizer is None else _values(optimizer, saved, states)
        state.restore_small(
            {"optimizer": values, "parts": _parts(state, saved)},
            optimizer_states=optimizer_states,
            lr_scheduler_states=lr_scheduler_states,
        )
    return str(saved.path), saved.run_state | saved.client_state


def _states(optimizer: NamedOptimizer, saved: FullCheckpoint) -> _States:
    """Return states by name; at stage 0 they are numbered in the optimizer's order."""
    if saved.optimizer_states:
        return saved.optimizer_states
    in_order = dict(enumerate(optimizer.names()))
    return {in_order[n]: dict(own) for n, own in saved.indexed_states.items() if n in in_order}


def _tensors(states: _States) -> dict[str, Tensor]:
    """Return the per-element states by key."""
    return {
        state_key(name, entry): value
        for name, entries in states.items()
        for entry, value in entries.items()
        if has_elements(value)
    }


def _targets(state: TrainingState, optimizer: NamedOptimizer, states: _States) -> dict[str, Tensor]:
    """Return the tensors to load into; raise CheckpointMismatchError for states that do not fit."""
    entries = {entry for own in states.values() for entry in own if has_elements(own[entry])}
    if entries:
        optimizer.check_states(entries, "another optimizer")
    saved = {key: (tensor.shape, tensor.dtype) for key, tensor in _tensors(states).items()}
    for key, (shape, _) in saved.items():
        parameter = optimizer.parameters.get(name_and_entry(key)[0])
        if parameter is not None and parameter.shape != shape:
            raise CheckpointMismatchError(
                f"{key} has shape {tuple(shape)} in the checkpoint, and its parameter has "
                f"{tuple(parameter.shape)}: the groups of the optimizer have another order"
            )
    return optimizer.targets(saved, state.load_target, state.state_dtype)


def _values(optimizer: NamedOptimizer, saved: FullCheckpoint, states: _States) -> dict[str, Any]:
    """Return group options and scalars as in dsengine's checkpoints."""
    groups = zip(saved.group_names or optimizer.members, saved.groups, strict=False)
    return {
        "groups": [{"names": members, "options": options} for members, options in groups],
        "scalars": {
            name: _scalars(entries, optimizer.optimizer) for name, entries in states.items()
        },
    }


def _scalars(entries: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """Return the scalar states; torch's classes require tensors, DeepSpeed's count in integers."""
    scalars = {name: value for name, value in entries.items() if not has_elements(value)}
    step = scalars.get("step")
    bases = [cls for cls in type(optimizer).__mro__ if cls is not Optimizer]
    is_of_torch = any(cls.__module__.startswith("torch.optim.") for cls in bases)
    if isinstance(step, int) and is_of_torch:
        scalars["step"] = torch.tensor(float(step))
    return scalars


def _parts(state: TrainingState, saved: FullCheckpoint) -> dict[str, Any]:
    """Return the small states that the checkpoint has, completed with the current ones."""
    own = ("counters", "loss_scale")
    current = {name: state.parts[name].state_dict() for name in own if name in state.parts}
    parts: dict[str, Any] = {}
    if saved.counters:
        parts["counters"] = current.get("counters", {}) | saved.counters
    if saved.lr_scheduler:
        parts["lr_scheduler"] = saved.lr_scheduler
    if "cur_scale" in saved.loss_scale:
        scale = current.get("loss_scale", {})
        parts["loss_scale"] = scale | {
            ours: saved.loss_scale[theirs]
            for theirs, ours in LOSS_SCALE_NAMES.items()
            if theirs in saved.loss_scale and ours in scale
        }
    return parts
