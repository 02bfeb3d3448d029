"""torch.distributed.checkpoint's file reader, with a metadata file that cannot run code."""

import pickle
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from dsengine.checkpoint.errors import CheckpointError

_DATA_CLASSES = {
    (cls.__module__, cls.__qualname__): cls
    for cls in (
        _MEM_FORMAT_ENCODING,
        _StorageInfo,
        BytesStorageMetadata,
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        StorageMeta,
        TensorProperties,
        TensorStorageMetadata,
        torch.Size,
    )
}


class _MetadataUnpickler(pickle.Unpickler):
    """Builds the metadata classes of torch.distributed.checkpoint and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _DATA_CLASSES:
            return _DATA_CLASSES[module, name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) == ("torch.serialization", "_get_layout"):
            return torch.serialization._get_layout
        if module == "pathlib" and name in ("PosixPath", "PurePosixPath"):
            import pathlib

            return getattr(pathlib, name)
        raise CheckpointError(f"the metadata file names {module}.{name}, which is not data")


class SafeFileSystemReader(FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = self._get_metadata_path(kwargs.get("rank"))
        try:
            with open(path, "rb") as file:  # noqa: PTH123
                metadata = _MetadataUnpickler(file).load()
        except (pickle.UnpicklingError, EOFError, AttributeError, IndexError) as error:
            raise CheckpointError(f"{path} is not a checkpoint's metadata: {error}") from None
        if not isinstance(metadata, Metadata):
            raise CheckpointError(f"{path} is not a checkpoint's metadata")
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata
