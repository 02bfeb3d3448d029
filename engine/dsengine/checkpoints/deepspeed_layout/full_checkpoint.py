"""The full contents of a checkpoint by parameter name, in a common form for both formats."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsengine.checkpoints import small_states
from dsengine.checkpoints.directory import STATE
from dsengine.checkpoints.group import CheckpointGroup
from dsengine.checkpoints.manifest import Manifest, read_manifest
from dsengine.checkpoints.state import name_and_entry
from dsengine.checkpoints.tensor_files import MODEL, read_tensors, saved_tensors, weight_key
from dsengine.optimizers.precision import DTYPES

LOSS_SCALE_NAMES = {
    "cur_scale": "scale",
    "cur_iter": "iteration",
    "last_overflow_iter": "last_overflow",
    "cur_hysteresis": "hysteresis_left",
    "scale_window": "window",
    "min_scale": "minimum",
    "delayed_shift": "hysteresis",
    "consecutive_hysteresis": "consecutive_hysteresis",
}
"""DeepSpeed's names of the loss scale's state, with ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FullCheckpoint:
    """``weights``: fp32 if masters were saved, including buffers and tied names.

    ``optimizer_states``: name -> entry -> tensor. ``indexed_states``: the same by position in the
    optimizer, as DeepSpeed saves them at stage 0. ``groups``: the options of the optimizer's
    groups; ``group_names``: their parameters, empty at stage 0. ``loss_scale``: with DeepSpeed's
    names.
    """

    path: Path
    stage: int
    world_size: int
    weights: dict[str, Tensor]
    dtype: torch.dtype = torch.float32
    """The compute dtype."""
    buffers: list[str] = field(default_factory=list)
    tied: dict[str, str] = field(default_factory=dict)
    """Aliases of tied weights, with the first name."""
    optimizer_type: str | None = None
    optimizer_states: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    indexed_states: dict[int, dict[str, Any]] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    group_names: list[list[str]] = field(default_factory=list)
    lr_scheduler: dict[str, Any] | None = None
    loss_scale: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    client_state: dict[str, Any] = field(default_factory=dict)
    run_state: dict[str, Any] = field(default_factory=dict)
    """What loading adds to the client state; only read from DeepSpeed's files."""
    config: dict[str, Any] = field(default_factory=dict)


def own_checkpoint(directory: Path, *, only_weights: bool = False) -> FullCheckpoint:
    """Read a full dsengine checkpoint into host memory.

    Raises CheckpointError if it is missing, damaged or foreign.
    """
    manifest = read_manifest(directory)
    description = manifest.description
    tensors = _tensors(directory, manifest, only_weights)
    weights = {name: tensors[weight_key(name)] for name in manifest.weights}
    weights |= {n: weights[same] for n, same in manifest.tied.items() if same in weights}
    small = {} if only_weights else small_states.load(directory / STATE)
    optimizer, parts = small.get("optimizer") or {}, small.get("parts") or {}
    scale = parts.get("loss_scale") or {}
    return FullCheckpoint(
        path=directory,
        stage=description.get("stage", 0),
        world_size=description.get("world_size", 1),
        weights=weights,
        dtype=DTYPES[description.get("precision", "fp32")],
        buffers=manifest.buffers,
        tied=manifest.tied,
        optimizer_type=optimizer.get("type"),
        optimizer_states=_states(tensors, optimizer.get("scalars") or {}),
        groups=[dict(group["options"]) for group in optimizer.get("groups") or []],
        group_names=[list(group["names"]) for group in optimizer.get("groups") or []],
        lr_scheduler=parts.get("lr_scheduler"),
        loss_scale={name: scale[own] for name, own in LOSS_SCALE_NAMES.items() if own in scale},
        counters=parts.get("counters") or {},
        client_state=small.get("client_state") or {},
        config=description.get("config") or {},
    )


def _tensors(directory: Path, manifest: Manifest, only_weights: bool) -> dict[str, Tensor]:
    targets = {
        key: torch.empty(shape, dtype=dtype)
        for key, (shape, dtype) in saved_tensors(directory).items()
        if key.startswith(MODEL) or not only_weights
    }
    read_tensors(targets, directory, CheckpointGroup(alone=True), manifest.checksums)
    return targets


def _states(
    tensors: Mapping[str, Tensor], scalars: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    states: dict[str, dict[str, Any]] = {name: dict(state) for name, state in scalars.items()}
    for key, tensor in tensors.items():
        name, entry = name_and_entry(key)
        if name:
            states.setdefault(name, {})[entry] = tensor
    return states
