"""Full weights: gathered from shards, written to files and read from them.

Files are safetensors in the layout of Hugging Face, with an index if there are several, or those of
torch. Reading them, each rank reads only its own slices.
"""

import json
from collections.abc import Container, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dsengine.checkpoints.directory import sync_directory, write_synced
from dsengine.checkpoints.group import CheckpointError, CheckpointGroup
from dsengine.checkpoints.manifest import check_weights
from dsengine.checkpoints.state import TrainingState
from dsengine.parameters.names import units_resharded
from dsengine.parameters.quantized import packed_names
from dsengine.parameters.shards import full_tensor_of, pieces_of
from dsengine.topology import rank
from dsengine.torch_private.tensors import local_part, storage_key


def exported_dtypes(
    tensors: Mapping[str, Tensor], dtype: torch.dtype | None
) -> dict[str, torch.dtype]:
    """Return by name ``dtype`` for floating-point tensors, and the tensor's own for others.

    Packed weights and their constants keep theirs.
    """
    packed = packed_names(tensors)
    return {
        name: tensor.dtype
        if dtype is None or name in packed or not tensor.is_floating_point()
        else dtype
        for name, tensor in tensors.items()
    }


@torch.no_grad()
def full_tensors(
    tensors: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype], *, keep: bool
) -> Iterator[tuple[str, Tensor]]:
    """Gather one tensor at a time; yield (name, host copy) if ``keep``.

    Collective: every rank must exhaust it. A rank has one full tensor in memory besides those its
    caller keeps. Tensors are cast before the gather, so that 16-bit weights are sent as such.
    """
    for name, tensor in tensors.items():
        cast = tensor.to(dtypes[name])
        full = full_tensor_of(cast) if isinstance(cast, DTensor) else cast
        if keep:
            # A copy even on the host: training must not change what is written.
            yield name, full.to("cpu", copy=full is tensor).contiguous()


def full_state_dict(
    state: TrainingState,
    *,
    dtype: torch.dtype | None = None,
    exclude_frozen: bool = False,
    rank0_only: bool = True,
) -> dict[str, Tensor]:
    """Return the full state dict on the host of rank 0 (or all ranks), {} on the others.

    Tied weights appear under each of their names, as in ``module.state_dict()``. Collective.
    """
    keep = not rank0_only or rank() == 0
    weights = state.weights(exclude_frozen=exclude_frozen)
    full = dict(full_tensors(weights, exported_dtypes(weights, dtype), keep=keep))
    return full | {name: full[first] for name, first in state.tied().items() if first in full}


@torch.no_grad()
def full_copy(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the full tensor in ``dtype`` and in memory of its own. Collective for shards."""
    cast = tensor.to(dtype)
    full = full_tensor_of(cast) if isinstance(cast, DTensor) else cast
    is_own = storage_key(full) != storage_key(local_part(tensor))
    return full.contiguous() if is_own else full.clone(memory_format=torch.contiguous_format)


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
