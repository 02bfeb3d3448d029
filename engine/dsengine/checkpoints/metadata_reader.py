"""torch.distributed.checkpoint's file reader, with a metadata file that cannot run code."""

import pickle
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from dsengine.checkpoints.errors import CheckpointError
from dsengine.torch_private import metadata_path, named_in_checkpoint_metadata

_DATA_CLASSES = named_in_checkpoint_metadata()


class _MetadataUnpickler(pickle.Unpickler):
    """Builds the metadata classes of torch.distributed.checkpoint and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _DATA_CLASSES:
            return _DATA_CLASSES[module, name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module == "pathlib" and name in ("PosixPath", "PurePosixPath"):
            import pathlib

            return getattr(pathlib, name)
        raise CheckpointError(f"the metadata file names {module}.{name}, which is not data")


class SafeFileSystemReader(FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = metadata_path(self, kwargs.get("rank"))
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
