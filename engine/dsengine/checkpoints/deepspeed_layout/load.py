"""Loading a DeepSpeed checkpoint at any stage and world size."""

from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dsengine.checkpoints.deepspeed_layout.full_checkpoint import LOSS_SCALE_NAMES, FullCheckpoint
from dsengine.checkpoints.deepspeed_layout.read import read_checkpoint
from dsengine.checkpoints.group import CheckpointGroup
from dsengine.checkpoints.manifest import check_weights, shapes
from dsengine.checkpoints.optimizer_state import (
    check_states,
    has_elements,
    restore_optimizer_values,
)
from dsengine.checkpoints.state import TrainingState
from dsengine.parameters.names import units_resharded
from dsengine.parameters.shards import copy_local_slice


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
    with_optimizer = optimizer_states and state.optimizer is not None and not module_only
    saved = group.run(
        lambda: _check(state, read_checkpoint(path, tag), strict, with_optimizer), action
    )
    with torch.no_grad(), units_resharded(state.module):
        for name, target in state.weights().items():
            if name in saved.weights:
                copy_local_slice(target, saved.weights[name])
        state.refresh_parameters()
    if not module_only:
        if with_optimizer:
            _load_optimizer(state, saved)
        _load_parts(state, saved, optimizer_states, lr_scheduler_states)
    return str(saved.path), saved.run_state | saved.client_state


def _check(
    state: TrainingState, saved: FullCheckpoint, strict: bool, with_optimizer: bool
) -> FullCheckpoint:
    targets = state.weights()
    tied = state.tied()
    weights = {name: tensor for name, tensor in saved.weights.items() if name not in tied}
    check_weights(shapes(weights), targets, strict=strict)
    if with_optimizer:
        _check_states(state, _states(state, saved))
    return saved


def _check_states(state: TrainingState, states: Mapping[str, Mapping[str, Any]]) -> None:
    assert state.optimizer is not None
    entries = {
        name: {entry: value.shape for entry, value in saved.items() if has_elements(value)}
        for name, saved in states.items()
    }
    if available := set[str]().union(*entries.values()):
        check_states(state.optimizer, available, "another optimizer")
    for name, kept in entries.items():
        for entry, shape in kept.items():
            state.load_target(name, entry, shape)  # raises if the state cannot be stored


def _load_optimizer(state: TrainingState, saved: FullCheckpoint) -> None:
    assert state.optimizer is not None
    trained = state.trained()
    states = _states(state, saved)
    for name, entries in states.items():
        if name in trained:
            current = state.optimizer.state[trained[name]]
            _load_entries(
                current,
                trained[name],
                entries,
                partial(state.load_target, name),
                state.state_dtype,
            )
    names = saved.group_names or _current_group_names(state)
    scalars = {name: _scalars(entries, state.optimizer) for name, entries in states.items()}
    saved_groups = [
        {"names": members, "options": options}
        for members, options in zip(names, saved.groups, strict=False)
    ]
    values = {"groups": saved_groups, "scalars": scalars}
    restore_optimizer_values(trained, state.optimizer, values)


@torch.no_grad()
def _load_entries(
    entries: dict[str, Any],
    parameter: Tensor,
    saved: Mapping[str, Tensor],
    load_target: Callable[[str, torch.Size], Tensor | None],
    state_dtype: Callable[[Tensor, torch.dtype], torch.dtype],
) -> None:
    for entry, value in saved.items():
        if has_elements(value):
            target = load_target(entry, value.shape)
            if target is None:
                dtype = state_dtype(parameter, value.dtype)
                target = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
            copy_local_slice(target, value)
            entries[entry] = target


def _scalars(entries: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """Return the scalar states; torch's classes require tensors, DeepSpeed's count in integers."""
    scalars = {name: value for name, value in entries.items() if not has_elements(value)}
    step = scalars.get("step")
    if isinstance(step, int) and _is_of_torch(optimizer):
        scalars["step"] = torch.tensor(float(step))
    return scalars


def _is_of_torch(optimizer: Optimizer) -> bool:
    bases = [cls for cls in type(optimizer).__mro__ if cls is not Optimizer]
    return any(cls.__module__.startswith("torch.optim.") for cls in bases)


def _states(state: TrainingState, saved: FullCheckpoint) -> dict[str, dict[str, Any]]:
    """Return states by name; at stage 0 they are numbered in the optimizer's order."""
    if saved.optimizer_states:
        return saved.optimizer_states
    in_order = [name for group in _current_group_names(state) for name in group]
    return {
        in_order[number]: dict(entries)
        for number, entries in saved.indexed_states.items()
        if number < len(in_order)
    }


def _current_group_names(state: TrainingState) -> list[list[str]]:
    assert state.optimizer is not None
    names = {id(tensor): name for name, tensor in state.trained().items()}
    return [[names[id(p)] for p in group["params"]] for group in state.optimizer.param_groups]


def _load_parts(
    state: TrainingState, saved: FullCheckpoint, optimizer: bool, scheduler: bool
) -> None:
    parts = state.parts
    if "counters" in parts and saved.counters:
        parts["counters"].load_state_dict(parts["counters"].state_dict() | saved.counters)
    if "lr_scheduler" in parts and scheduler and saved.lr_scheduler:
        parts["lr_scheduler"].load_state_dict(saved.lr_scheduler)
    if "loss_scale" in parts and optimizer and "cur_scale" in saved.loss_scale:
        current = parts["loss_scale"].state_dict()
        loaded = {
            ours: saved.loss_scale[theirs]
            for theirs, ours in LOSS_SCALE_NAMES.items()
            if theirs in saved.loss_scale and ours in current
        }
        parts["loss_scale"].load_state_dict(current | loaded)
