"""Reading a DeepSpeed checkpoint into plain data by parameter name."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsconfig.features.table import FEATURES
from dsengine.checkpoints.deepspeed_layout.files import (
    find_files,
    is_deepspeed_directory,
    read_file,
    tag_directory,
)
from dsengine.checkpoints.deepspeed_layout.flat import (
    merge_each,
    merge_flat_groups,
    merge_fragments,
)
from dsengine.checkpoints.deepspeed_layout.full_checkpoint import FullCheckpoint, own_checkpoint
from dsengine.checkpoints.directory import read_latest
from dsengine.checkpoints.group import CheckpointError
from dsengine.checkpoints.small_states import ADDED
from dsengine.checkpoints.state import has_elements

COUNTERS = ("global_steps", "global_samples", "skipped_steps")
KNOWN = frozenset(
    {
        *COUNTERS,
        "buffer_names",
        "checkpoint_parallel_dimensions",
        "data_sampler",
        "dp_world_size",
        "ds_config",
        "ds_version",
        "frozen_param_fragments",
        "frozen_param_shapes",
        "lr_scheduler",
        "module",
        "mp_world_size",
        "optimizer",
        "param_shapes",
        "random_ltd",
        "shared_params",
        "sparse_tensor_module_names",
    }
)
"""Keys that DeepSpeed writes; all others are the script's client state."""


def read_checkpoint(path: str | PathLike[str], tag: str | None = None) -> FullCheckpoint:
    """Read a checkpoint of stages 0 to 3 without running code from it.

    Raises CheckpointError for files that are missing, damaged, foreign or model-parallel.
    """
    directory = tag_directory(Path(path), tag)
    of_model, of_optimizer = find_files(directory)
    models = [read_file(file) for file in of_model]
    optimizers = [read_file(file)["optimizer_state_dict"] for file in of_optimizer]
    common = _common(directory, models)
    if not optimizers:
        return _stage0(models[0], common)
    shapes = models[0]["param_shapes"]
    if not isinstance(optimizers[0].get("base_optimizer_state", {}), Mapping):
        raise CheckpointError(f"{directory}: {FEATURES['elastic_checkpoints'].text}")
    merge = _stage3 if "fp32_flat_groups" in optimizers[0] else _flat_stages
    stage, base, masters, states = merge(shapes, optimizers)
    return FullCheckpoint(
        stage=stage,
        weights=_weights(models if stage == 3 else models[:1], masters),
        optimizer_states=states,
        groups=_options(base)[: len(shapes)],
        group_names=[list(group) for group in shapes],
        loss_scale=dict(vars(optimizers[0]["loss_scaler"])),
        **common,
    )


def read_full(root: Path, tag: str | None = None, *, only_weights: bool = False) -> FullCheckpoint:
    """Read a full checkpoint of DeepSpeed or dsengine into host memory (default tag: ``latest``).

    ``only_weights`` skips other tensors of dsengine's checkpoints. Raises CheckpointError if there
    is no complete checkpoint.
    """
    tag = tag or read_latest(root)
    if tag is None:
        raise CheckpointError(f"{root} has no file named latest: specify the tag")
    if is_deepspeed_directory(root / tag):
        return read_checkpoint(root, tag)
    return own_checkpoint(root / tag, only_weights=only_weights)


def _common(directory: Path, models: list[dict[str, Any]]) -> dict[str, Any]:
    first = models[0]
    if "module" not in first:
        raise CheckpointError(f"{directory} contains no weights: {sorted(first)[:8]}")
    return {
        "path": directory,
        "world_size": first.get("dp_world_size", 1),
        "lr_scheduler": first.get("lr_scheduler"),
        "counters": {name: first[name] for name in COUNTERS if name in first},
        "client_state": {key: first[key] for key in first if key not in KNOWN},
        "run_state": {key: first[key] for key in ADDED if key in first},
        "dtype": _dtype(first),
        "buffers": list(first.get("buffer_names") or []),
        "tied": dict(first.get("shared_params") or {}),
        "config": dict(first.get("ds_config") or {}),
    }


def _dtype(model: dict[str, Any]) -> torch.dtype:
    """Return the compute dtype: that of the model's weights."""
    buffers = set(model.get("buffer_names") or [])
    dtypes = (t.dtype for name, t in model["module"].items() if name not in buffers)
    return next((dtype for dtype in dtypes if dtype.is_floating_point), torch.float32)


def _stage0(model: dict[str, Any], common: dict[str, Any]) -> FullCheckpoint:
    optimizer = model.get("optimizer") or {}
    inner = optimizer.get("optimizer_state_dict", optimizer)
    return FullCheckpoint(
        stage=0,
        weights=dict(model["module"]),
        indexed_states=dict(inner.get("state", {})),
        groups=_options(inner),
        **common,
    )


_Merged = tuple[int, Mapping[str, Any], dict[str, Tensor], dict[str, dict[str, Tensor]]]
"""Stage, the optimizer's state on rank 0, and full masters and states by name."""


def _flat_stages(shapes: Any, ranks: list[dict[str, Any]]) -> _Merged:
    paddings = ranks[0].get("param_alignment_paddings") or []
    masters = [rank["single_partition_of_fp32_groups"] for rank in ranks]
    bases = [rank["base_optimizer_state"] for rank in ranks]
    states: dict[str, dict[str, Tensor]] = {}
    stepped = sorted(bases[0]["state"])  # empty before the first step
    stepped_shapes = [shapes[i] for i in stepped]
    gaps = [paddings[i] for i in stepped] if paddings else []
    for entry in _flat_entries(bases[0]["state"]):
        flats = [[base["state"][i][entry] for i in stepped] for base in bases]
        _collect(states, entry, merge_flat_groups(stepped_shapes, flats, gaps))
    _collect_scalars(states, stepped_shapes, [bases[0]["state"][i] for i in stepped])
    stage = ranks[0]["zero_stage"]
    number = int(stage.arguments[0]) if getattr(stage, "arguments", ()) else int(stage)
    return number, bases[0], merge_flat_groups(shapes, masters, paddings), states


def _stage3(shapes: Any, ranks: list[dict[str, Any]]) -> _Merged:
    masters = [torch.cat(list(rank["fp32_flat_groups"])) for rank in ranks]
    bases = [rank["optimizer_state_dict"] for rank in ranks]
    states: dict[str, dict[str, Tensor]] = {}
    for entry in _flat_entries(bases[0]["state"]):
        order = sorted(bases[0]["state"])
        flats = [torch.cat([base["state"][i][entry] for i in order]) for base in bases]
        _collect(states, entry, merge_each(shapes, flats))
    first = next(iter(bases[0]["state"].values()), {})
    _collect_scalars(states, shapes, [first] * len(shapes))
    return 3, bases[0], merge_each(shapes, masters), states


def _weights(models: list[dict[str, Any]], masters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return masters, frozen parameters, buffers and tied names, in the model's order."""
    first = models[0]
    merged = dict(masters)
    frozen = first.get("frozen_param_shapes") or {}
    fragments = [model.get("frozen_param_fragments") or {} for model in models]
    merged |= merge_fragments(frozen, fragments)
    merged |= {name: first["module"][name] for name in first.get("buffer_names", [])}
    for name, same_as in (first.get("shared_params") or {}).items():
        merged.setdefault(name, merged[same_as])
    unsharded = {name: tensor for name, tensor in first["module"].items() if tensor.numel()}
    merged = unsharded | merged
    return {name: merged[name] for name in first["module"] if name in merged}


def _flat_entries(states: Mapping[int, Mapping[str, Any]]) -> list[str]:
    first = next(iter(states.values()), {})
    return [name for name, value in first.items() if has_elements(value)]


def _collect(
    states: dict[str, dict[str, Tensor]], entry: str, merged: Mapping[str, Tensor]
) -> None:
    for name, tensor in merged.items():
        states.setdefault(name, {})[entry] = tensor


def _collect_scalars(
    states: dict[str, dict[str, Tensor]], shapes: Any, group_states: list[Mapping[str, Any]]
) -> None:
    for group, state in zip(shapes, group_states, strict=True):
        for entry, value in state.items():
            if has_elements(value):
                continue
            for name in group:
                states.setdefault(name, {})[entry] = torch.as_tensor(value, dtype=torch.float32)


def _options(optimizer: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.get("param_groups", [])
    ]
