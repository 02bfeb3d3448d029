"""Whole fp32 weights from a checkpoint directory, in one process and without an engine.

Reads what this engine has saved, and what DeepSpeed has, at any stage and number of ranks.
"""

from os import PathLike
from pathlib import Path as FilePath

import torch
from torch import Tensor, nn

from dsengine.checkpoints import CheckpointError
from dsengine.checkpoints.deepspeed_layout import is_deepspeed_directory, read_checkpoint
from dsengine.checkpoints.directory import read_latest
from dsengine.checkpoints.group import CheckpointGroup
from dsengine.checkpoints.manifest import read_manifest
from dsengine.checkpoints.tensor_files import read_tensors, saved_tensors

Path = str | PathLike[str]


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: Path, tag: str | None = None, exclude_frozen_parameters: bool = False
) -> dict[str, Tensor]:
    """Return name -> fp32 tensor on the host, of ``tag`` or what ``latest`` names.

    Buffers are part of it. A tied weight comes under the first of its
    names. Raises CheckpointError where there is no whole checkpoint, ValueError for
    ``exclude_frozen_parameters``.
    """
    if exclude_frozen_parameters:
        raise ValueError(
            "exclude_frozen_parameters: a checkpoint does not say which parameters were frozen; "
            "leave them out when saving: save_checkpoint(exclude_frozen_parameters=True)"
        )
    root = FilePath(checkpoint_dir)
    tag = tag or read_latest(root)
    if tag is None:
        raise CheckpointError(f"{root} has no file named latest: give the tag")
    if is_deepspeed_directory(root / tag):
        weights = read_checkpoint(root, tag).weights
    else:
        weights = _own_weights(root / tag)
    return {name: t.float() if t.is_floating_point() else t for name, t in weights.items()}


def load_state_dict_from_zero_checkpoint(
    model: nn.Module, checkpoint_dir: Path, tag: str | None = None
) -> nn.Module:
    """Load whole fp32 weights into ``model``, which is no part of an engine; return it."""
    model.load_state_dict(get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag), False)
    return model.cpu()


def _own_weights(directory: FilePath) -> dict[str, Tensor]:
    names = read_manifest(directory).weights
    targets: dict[str, Tensor] = {}
    for key, (shape, dtype) in saved_tensors(directory).items():
        kind, _, name = key.partition(".")
        if kind == "model" and name in names:
            targets[key] = torch.empty(shape, dtype=dtype)
    read_tensors(targets, directory, CheckpointGroup(alone=True))
    return {key.partition(".")[2]: tensor for key, tensor in targets.items()}


__all__ = ["get_fp32_state_dict_from_zero_checkpoint", "load_state_dict_from_zero_checkpoint"]
