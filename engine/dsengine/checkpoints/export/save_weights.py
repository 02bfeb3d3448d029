"""Writing full weights: sharded safetensors with an index, or torch's own files."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsengine.checkpoints.directory import sync_directory, write_synced
from dsengine.checkpoints.export.full_weights import exported_dtypes, full_tensors
from dsengine.checkpoints.group import CheckpointGroup
from dsengine.checkpoints.state import TrainingState

SAFETENSORS_NAME = "model.safetensors"
DEFAULT_FILE_BYTES = 5 * 10**9


@dataclass(frozen=True, slots=True)
class FileLayout:
    """``files``: file name -> tensor names; ``total_bytes``: of all tensors."""

    files: dict[str, list[str]]
    total_bytes: int

    @property
    def index(self) -> bytes:
        """The index file, with the file of each tensor."""
        weight_map = {name: file for file, names in self.files.items() for name in names}
        content = {"metadata": {"total_size": self.total_bytes}, "weight_map": weight_map}
        return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()


def _divide(sizes: Mapping[str, int], filename: str, max_bytes: int) -> FileLayout:
    """Fill files in order, none above ``max_bytes`` unless a single tensor is.

    One file keeps ``filename``; several get ``-00001-of-0000N`` before the extension.
    """
    parts: list[list[str]] = [[]]
    total = 0
    for name, size in sizes.items():
        if parts[-1] and total + size > max_bytes:
            parts.append([])
            total = 0
        parts[-1].append(name)
        total += size
    if len(parts) == 1:
        return FileLayout({filename: parts[0]}, sum(sizes.values()))
    path = Path(filename)
    names = (f"{path.stem}-{i:05d}-of-{len(parts):05d}{path.suffix}" for i in range(1, 10**6))
    return FileLayout(dict(zip(names, parts, strict=False)), sum(sizes.values()))


def save_weights(
    state: TrainingState,
    save_dir: str | PathLike[str],
    filename: str = SAFETENSORS_NAME,
    *,
    group: CheckpointGroup,
    dtype: torch.dtype | None = None,
    exclude_frozen: bool = False,
    max_file_bytes: int = DEFAULT_FILE_BYTES,
) -> None:
    """Write full weights in a form that ``from_pretrained`` reads. Collective; rank 0 writes.

    A name ending in ``.safetensors`` selects safetensors, any other torch's format. Floating-point
    tensors are cast to ``dtype``. Rank 0 needs host memory for the weights of one file at a time.
    Raises CheckpointError on every rank when rank 0 cannot write.
    """
    root = Path(save_dir)
    tensors = state.weights(exclude_frozen=exclude_frozen)
    dtypes = exported_dtypes(tensors, dtype)
    sizes = {name: tensor.numel() * dtypes[name].itemsize for name, tensor in tensors.items()}
    layout = _divide(sizes, filename, max_file_bytes)
    action = f"saving weights to {root}"
    group.run_on_coordinator(lambda: root.mkdir(parents=True, exist_ok=True), action)
    gathered = full_tensors(tensors, dtypes, keep=group.is_coordinator)
    for file, names in layout.files.items():
        own = _take(gathered, names, tensors, dtypes, group)
        group.run_on_coordinator(lambda f=file, weights=own: _write(root / f, weights), action)

    def publish() -> None:
        _publish(root, filename, layout)
        config: Any = getattr(state.module, "config", None)  # of a Hugging Face model
        if hasattr(config, "save_pretrained") and not (root / "config.json").exists():
            config.save_pretrained(root)

    group.run_on_coordinator(publish, action)


def write_weights(
    weights: Mapping[str, Tensor],
    root: Path,
    filename: str = SAFETENSORS_NAME,
    dtype: torch.dtype | None = None,
    max_file_bytes: int = DEFAULT_FILE_BYTES,
) -> None:
    """Write the full weights of one process in the same form as ``save_weights``."""
    root.mkdir(parents=True, exist_ok=True)
    dtypes = exported_dtypes(weights, dtype)
    cast = {name: tensor.to(dtypes[name]) for name, tensor in weights.items()}
    layout = _divide({n: tensor.nbytes for n, tensor in cast.items()}, filename, max_file_bytes)
    for file, names in layout.files.items():
        keys = {n: n if file.endswith(".safetensors") else id(weights[n]) for n in names}
        own = {key: cast[name].contiguous().clone() for name, key in keys.items()}
        # torch's format stores a tensor with two names once.
        _write(root / file, {name: own[key] for name, key in keys.items()})
    _publish(root, filename, layout)


def _take(
    gathered: Iterator[tuple[str, Tensor]],
    names: list[str],
    tensors: Mapping[str, Tensor],
    dtypes: Mapping[str, torch.dtype],
    group: CheckpointGroup,
) -> dict[str, Tensor]:
    """Gather the tensors of one file; return {} on ranks that do not write."""
    if group.is_coordinator:
        return dict(next(gathered) for _ in names)
    part = {name: tensors[name] for name in names}
    return dict(full_tensors(part, dtypes, keep=False))


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.writing")


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write one file under a temporary hidden name."""
    if path.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file(tensors, _temporary(path), metadata={"format": "pt"})
    else:
        torch.save(tensors, _temporary(path))


def _publish(root: Path, filename: str, layout: FileLayout) -> None:
    """Rename all files, then write the index and remove files of an older export."""
    for file in layout.files:
        _temporary(root / file).replace(root / file)
    index = root / f"{filename}.index.json"
    if len(layout.files) > 1:
        write_synced(_temporary(index), layout.index)
        _temporary(index).replace(index)
        (root / filename).unlink(missing_ok=True)
    else:
        index.unlink(missing_ok=True)
    sync_directory(root)
