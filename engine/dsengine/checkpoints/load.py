"""Reading a checkpoint into a model of any sharding."""

from pathlib import Path
from typing import Any

from torch import Tensor

from dsengine.checkpoints import directory, plain
from dsengine.checkpoints.checksums import Checksums, check
from dsengine.checkpoints.errors import CheckpointError
from dsengine.checkpoints.group import CheckpointGroup
from dsengine.checkpoints.manifest import Manifest, check_weights, read_manifest
from dsengine.checkpoints.optimizer_state import (
    adopt_optimizer_tensors,
    check_same_family,
    optimizer_targets,
    restore_optimizer_values,
)
from dsengine.checkpoints.random_state import restore_random_state
from dsengine.checkpoints.state import TrainingState
from dsengine.checkpoints.tensor_files import METADATA, read_tensors, saved_tensors, weight_key
from dsengine.parameters.names import units_resharded

_SMALL = {"client_state": dict, "parts": dict, "random": list, "optimizer": dict | None}
"""What the small states are, by name."""


def load(
    state: TrainingState,
    group: CheckpointGroup,
    path: Path,
    *,
    strict: bool = True,
    optimizer_states: bool = True,
    lr_scheduler_states: bool = True,
    module_only: bool = False,
    verify: bool = True,
) -> dict[str, Any]:
    """Load ``path`` into ``state`` and return the client state.

    Everything is checked on all ranks before the first tensor is changed, so a refusal leaves
    the run as it was. ``verify``: also that every piece which is read has its checksum.
    """
    what = f"loading checkpoint {path}"
    manifest = group.run(lambda: read_manifest(path, check_files=group.is_coordinator), what)
    checksums = manifest.checksums if verify else {}
    group.run_on_coordinator(lambda: _check_small_files(path, checksums), what)
    small, weights, states = group.run(
        lambda: _prepare(state, manifest, path, strict, optimizer_states and not module_only), what
    )
    with units_resharded(state.module):
        read_tensors(weights | (states or {}), path, group, checksums)
        if state.optimizer is not None and states is not None:
            adopt_optimizer_tensors(state.trained(), state.optimizer, states)
        state.refresh_parameters()
    if not module_only:
        group.run(
            lambda: _restore_small(state, small, group, optimizer_states, lr_scheduler_states), what
        )
    return small["client_state"]


def _check_small_files(path: Path, checksums: Checksums) -> None:
    small = (directory.STATE, METADATA)
    check(path, [(n, int(p[0]), int(p[1])) for n in small for p in checksums.get(n, ())], checksums)


def _prepare(
    state: TrainingState, manifest: Manifest, path: Path, strict: bool, with_optimizer: bool
) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor] | None]:
    """The small states, and what weights and the optimizer's states (or None) are read into."""
    held = state.weights()
    names = check_weights(manifest.weights, held, strict=strict, excluded=manifest.excluded)
    small = _small_states(path / directory.STATE)
    saved = saved_tensors(path)
    weights = {weight_key(name): held[name] for name in names}
    if not with_optimizer or state.optimizer is None or small["optimizer"] is None:
        return small, weights, None
    check_same_family(state.optimizer, small["optimizer"])
    targets = optimizer_targets(state.trained(), state.optimizer, saved, state.room)
    return small, weights, targets


def _small_states(path: Path) -> dict[str, Any]:
    small = plain.load(path)
    held = small if isinstance(small, dict) else {}
    for name, kind in _SMALL.items():
        if name not in held or not isinstance(held[name], kind):
            raise CheckpointError(f"{path} does not hold the states of a run: {name} is not there")
    return held


def _restore_small(
    state: TrainingState,
    small: dict[str, Any],
    group: CheckpointGroup,
    optimizer_states: bool,
    lr_scheduler_states: bool,
) -> None:
    if optimizer_states and state.optimizer is not None and small["optimizer"] is not None:
        restore_optimizer_values(state.trained(), state.optimizer, small["optimizer"])
    for name, part in state.parts.items():
        if name == "lr_scheduler" and not lr_scheduler_states:
            continue
        if name == "loss_scale" and not optimizer_states:
            continue
        if name in small["parts"]:
            part.load_state_dict(small["parts"][name])
    if group.rank < len(small["random"]):
        restore_random_state(small["random"][group.rank])
