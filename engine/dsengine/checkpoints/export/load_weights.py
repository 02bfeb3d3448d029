"""Reading Hugging Face safetensors into shards: each rank reads only its own slices."""

import json
from collections.abc import Container
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dsengine.checkpoints.errors import CheckpointError
from dsengine.checkpoints.export.save_weights import SAFETENSORS_NAME
from dsengine.checkpoints.group import CheckpointGroup
from dsengine.checkpoints.manifest import check_weights
from dsengine.checkpoints.state import TrainingState
from dsengine.parameters.names import units_resharded
from dsengine.parameters.shards import pieces_of
from dsengine.torch_private.tensors import local_part


def load_weights(
    state: TrainingState,
    source: str | PathLike[str],
    *,
    group: CheckpointGroup,
    strict: bool = True,
) -> None:
    """Fill a (sharded) module from a safetensors file or a directory in the Hugging Face layout.

    Raises CheckpointMismatchError on every rank, before anything is changed, if names or shapes
    differ, and CheckpointError if a file is missing or damaged. Collective.
    """
    targets = state.weights()
    action = f"loading weights from {source}"
    files = group.run(lambda: _check(Path(source), targets, state.tied(), strict), action)
    with units_resharded(state.module):
        group.run(lambda: _read(files, targets), action)
        state.refresh_parameters()


def weight_files(source: Path) -> dict[str, Path]:
    """Return the file of every tensor in ``source``.

    Raises CheckpointError if there is no safetensors file or one is damaged.
    """
    if source.is_dir():
        index = source / f"{SAFETENSORS_NAME}.index.json"
        if index.exists():
            weight_map: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
            return {name: source / file for name, file in weight_map.items()}
        source = source / SAFETENSORS_NAME
    if not source.exists():
        raise CheckpointError(f"{source} does not exist")
    with _opened(source) as file:
        return {name: source for name in file.keys()}  # noqa: C420, SIM118


def _opened(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def weight_shapes(source: Path) -> dict[str, list[int]]:
    """Return the shape of every tensor in ``source``; raises as ``weight_files`` does."""
    shapes: dict[str, list[int]] = {}
    for path, names in _by_file(source).items():
        with _opened(path) as file:
            shapes |= {name: file.get_slice(name).get_shape() for name in names}
    return shapes


def read_tensor(path: Path, name: str) -> Tensor:
    """Return a full tensor of a safetensors file."""
    with _opened(path) as file:
        return file.get_tensor(name)


def _by_file(source: Path) -> dict[Path, list[str]]:
    by_file: dict[Path, list[str]] = {}
    for name, path in weight_files(source).items():
        by_file.setdefault(path, []).append(name)
    return by_file


def _check(
    source: Path, targets: dict[str, Tensor], tied: Container[str], strict: bool
) -> dict[Path, list[str]]:
    """Return the tensors to read by file, or raise."""
    shapes = {name: shape for name, shape in weight_shapes(source).items() if name not in tied}
    names_to_load = set(check_weights(shapes, targets, strict=strict))
    files = _by_file(source).items()
    return {path: [n for n in names if n in names_to_load] for path, names in files}


@torch.no_grad()
def _read(files: dict[Path, list[str]], targets: dict[str, Tensor]) -> None:
    with ExitStack() as stack:
        for path, names in files.items():
            file = stack.enter_context(_opened(path))
            for name in names:
                _fill(targets[name], file, name)


def _fill(target: Tensor, file: Any, name: str) -> None:
    """Copy this rank's slice of tensor ``name`` to ``target``."""
    if not isinstance(target, DTensor):
        target.copy_(file.get_tensor(name))
        return
    local = local_part(target)
    for here, there in pieces_of(target) if local.numel() else ():
        local[here].copy_(file.get_slice(name)[there])
