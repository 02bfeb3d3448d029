"""Names in pickles of files written by torch, which are read without running code."""

import pickle
from typing import Any, cast

import torch
from torch import Tensor, nn

_torch = cast(Any, torch)


_LAYOUTS = {str(v): v for v in vars(torch).values() if isinstance(v, torch.layout)}


def _layout(name: str) -> torch.layout:
    """Return a layout by name; only layouts, so that files cannot call other torch functions."""
    if name not in _LAYOUTS:
        raise pickle.UnpicklingError(f"{name!r} is not a tensor layout")
    return _LAYOUTS[name]


def _rebuild_plain(rebuild: Any, kind: Any, arguments: tuple[Any, ...], state: Any) -> Any:
    """Rebuild a tensor without its subclass and Python attributes."""
    del kind, state
    return rebuild(*arguments)


def _rebuild_tensor(
    storage: Any, offset: int, size: Any, stride: Any, grad: Any, hooks: Any, *metadata: Any
) -> Tensor:
    """Rebuild a tensor without gradient and hooks."""
    del grad, hooks
    return _torch._utils._rebuild_tensor_v2(storage, offset, size, stride, False, {}, *metadata)


def _rebuild_parameter(data: Tensor, requires_grad: bool, hooks: Any) -> nn.Parameter:
    """Rebuild a parameter without hooks."""
    del hooks
    return nn.Parameter(data, requires_grad)


def is_torchscript(path: Any) -> bool:
    """Whether ``torch.load`` would pass this file to ``torch.jit.load``, which runs its code."""
    with open(path, "rb") as file:  # noqa: PTH123
        if not torch.serialization._is_zipfile(file):
            return False
    with torch.serialization._open_zipfile_reader(str(path)) as reader:
        return torch.serialization._is_torchscript_zip(reader)


def named_in_tensor_files() -> dict[tuple[str, str], Any]:
    """Return the functions for the globals that rebuild tensors in ``torch.save`` files.

    By module and name; None for classes that are only mentioned.
    """
    return {
        ("torch", "Size"): torch.Size,
        ("torch", "Tensor"): None,
        ("torch", "device"): torch.device,
        ("torch.nn.parameter", "Parameter"): None,
        ("torch.serialization", "_get_layout"): _layout,
        ("torch._tensor", "_rebuild_from_type_v2"): _rebuild_plain,
        ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
        ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    }


def named_in_checkpoint_metadata() -> dict[tuple[str, str], Any]:
    """Return the classes in ``torch.distributed.checkpoint`` metadata, by module and name."""
    from torch.distributed.checkpoint import filesystem, metadata

    classes = (
        filesystem._StorageInfo,
        metadata._MEM_FORMAT_ENCODING,
        metadata.BytesStorageMetadata,
        metadata.ChunkStorageMetadata,
        metadata.Metadata,
        metadata.MetadataIndex,
        metadata.StorageMeta,
        metadata.TensorProperties,
        metadata.TensorStorageMetadata,
        torch.Size,
    )
    named: dict[tuple[str, str], Any] = {(c.__module__, c.__qualname__): c for c in classes}
    return named | {("torch.serialization", "_get_layout"): _layout}


def metadata_path(reader: Any, rank: Any) -> Any:
    """Return the path of a ``FileSystemReader``'s metadata."""
    return reader._get_metadata_path(rank)
