"""torch.distributed.checkpoint's file reader, with a metadata file that cannot run code."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.futures import Future

from dsengine.checkpoints.errors import CheckpointError
from dsengine.torch_private import metadata_path, named_in_checkpoint_metadata

Wanted = Callable[[], list[tuple[str, int, int]]]
"""Gives (file, offset, length) of what is to be read; raises CheckpointError."""
BeforeReading = Callable[[Wanted], object]
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
    """``before_reading`` is called once on every rank with what is to be read there."""

    def __init__(self, path: Path, before_reading: BeforeReading = lambda wanted: wanted()) -> None:
        super().__init__(path)
        self._before_reading = before_reading

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
        _check_only_tensors(metadata)
        return metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Let every rank check what it is to read before any of them changes a tensor."""

        def wanted() -> list[tuple[str, int, int]]:
            indices = [item.storage_index for item in plan.items]
            nowhere = [index.fqn for index in indices if index not in self.storage_data]
            if nowhere:
                raise CheckpointError(f"the metadata file does not say where {nowhere[0]} lies")
            pieces = [self.storage_data[index] for index in indices]
            return sorted({(piece.relative_path, piece.offset, piece.length) for piece in pieces})

        self._before_reading(wanted)
        return super().read_data(plan, planner)


def _check_only_tensors(metadata: Metadata) -> None:
    """torch unpickles whatever the metadata does not call a tensor, and opens what it names."""
    for name, item in metadata.state_dict_metadata.items():
        if not isinstance(item, TensorStorageMetadata):
            raise CheckpointError(f"the metadata file calls {name} something else than a tensor")
    for piece in (metadata.storage_data or {}).values():
        if Path(piece.relative_path).name != piece.relative_path:
            raise CheckpointError(
                f"the metadata file names {piece.relative_path}, which is not in the checkpoint"
            )
        if piece.transform_descriptors:
            raise CheckpointError("the metadata file wants its tensors transformed")
