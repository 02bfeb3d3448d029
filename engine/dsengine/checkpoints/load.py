"""Reading a checkpoint into a model of any sharding."""

from pathlib import Path
from typing import Any

from torch import Tensor

from dsengine.checkpoints import directory, small_states
from dsengine.checkpoints.group import CheckpointError, CheckpointGroup
from dsengine.checkpoints.manifest import Checksums, Manifest, check, check_weights, read_manifest
from dsengine.checkpoints.small_states import restore_random_state, run_state
from dsengine.checkpoints.state import TrainingState, moments_of, name_and_entry
from dsengine.checkpoints.tensor_files import METADATA, read_tensors, saved_tensors, weight_key
from dsengine.parameters.names import units_resharded

_TYPES = {"client_state": dict, "parts": dict, "random": list, "optimizer": dict | None}
"""Type of each entry of the small states."""


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
    """Load ``path`` into ``state``; return the client state, with ``run_state``.

    Everything is checked on all ranks before the first tensor is changed, so that a refusal leaves
    the run unchanged. ``verify``: also compare the checksum of every byte range that is read.
    """
    action = f"loading checkpoint {path}"
    manifest = group.run(lambda: read_manifest(path, check_files=group.is_coordinator), action)
    checksums = manifest.checksums if verify else {}
    group.run_on_coordinator(lambda: _check_small_files(path, checksums), action)
    elsewhere = _names_on_stages(state, group)
    small, weights, states = group.run(
        lambda: _prepare(
            state, manifest, path, strict, optimizer_states and not module_only, elsewhere
        ),
        action,
    )
    with units_resharded(state.module):
        read_tensors(weights | (states or {}), path, group, checksums)
        if states is not None and (optimizer := state.named_optimizer()) is not None:
            optimizer.adopt(states)
        state.refresh_parameters()
    if not module_only:

        def restore() -> None:
            state.restore_small(
                small, optimizer_states=optimizer_states, lr_scheduler_states=lr_scheduler_states
            )
            if group.rank < len(small["random"]):
                restore_random_state(small["random"][group.rank])

        group.run(restore, action)
    return run_state(manifest, small) | small["client_state"]


def _names_on_stages(state: TrainingState, group: CheckpointGroup) -> frozenset[str]:
    """Return the weights that only other pipeline stages have. Collective with stages."""
    if state.stage_described is None:
        return frozenset()
    own = frozenset(state.weights())
    stages = [each for each in group.gather(own if state.stage_described else None) if each]
    return frozenset().union(*stages) - own


def _check_small_files(path: Path, checksums: Checksums) -> None:
    small = (directory.STATE, METADATA)
    check(path, [(n, int(p[0]), int(p[1])) for n in small for p in checksums.get(n, ())], checksums)


def _prepare(
    state: TrainingState,
    manifest: Manifest,
    path: Path,
    strict: bool,
    with_optimizer: bool,
    elsewhere: frozenset[str],
) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor] | None]:
    """Return the small states, and the tensors to read weights and optimizer states into.

    ``elsewhere``: names of weights that other pipeline stages load.
    """
    current = state.weights()
    own = {name: at for name, at in manifest.weights.items() if name not in elsewhere}
    names = check_weights(own, current, strict=strict, excluded=manifest.excluded)
    small = _small_states(path / directory.STATE)
    saved = saved_tensors(path)
    weights = {weight_key(name): current[name] for name in names}
    optimizer = state.named_optimizer() if with_optimizer else None
    if optimizer is None or small["optimizer"] is None:
        return small, weights, None
    values = small["optimizer"]
    available = {entry for key in saved if (entry := name_and_entry(key)[1])}
    named = available or moments_of(values["type"])
    if values["scalars"] and named is not None:
        optimizer.check_states(named, values["type"])
    return small, weights, optimizer.targets(saved, state.load_target, state.state_dtype)


def _small_states(path: Path) -> dict[str, Any]:
    small = small_states.load(path)
    states = small if isinstance(small, dict) else {}
    for name, expected in _TYPES.items():
        if name not in states or not isinstance(states[name], expected):
            raise CheckpointError(f"{path} has no valid training state: {name} is missing")
    return states
