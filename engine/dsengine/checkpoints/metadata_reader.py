"""torch.distributed.checkpoint's file reader, with safe unpickling of the metadata file."""

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

Ranges = Callable[[], list[tuple[str, int, int]]]
"""Returns (file, offset, length) of what will be read; raises CheckpointError."""
BeforeReading = Callable[[Ranges], object]
_DATA_CLASSES = named_in_checkpoint_metadata()


class _MetadataUnpickler(pickle.Unpickler):
    """Unpickles only the metadata classes of torch.distributed.checkpoint."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _DATA_CLASSES:
            return _DATA_CLASSES[module, name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module == "pathlib" and name in ("PosixPath", "PurePosixPath"):
            import pathlib

            return getattr(pathlib, name)
        raise CheckpointError(f"the metadata file contains {module}.{name}, which is not data")


class SafeFileSystemReader(FileSystemReader):
    """``before_reading`` is called once on every rank with the byte ranges it will read."""

    def __init__(self, path: Path, before_reading: BeforeReading = lambda ranges: ranges()) -> None:
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
        """Check the ranges on every rank before any of them changes a tensor."""

        def ranges() -> list[tuple[str, int, int]]:
            indices = [item.storage_index for item in plan.items]
            unknown = [index.fqn for index in indices if index not in self.storage_data]
            if unknown:
                raise CheckpointError(f"the metadata file has no location for {unknown[0]}")
            infos = [self.storage_data[index] for index in indices]
            return sorted({(info.relative_path, info.offset, info.length) for info in infos})

        self._before_reading(ranges)
        return super().read_data(plan, planner)


def _check_only_tensors(metadata: Metadata) -> None:
    """Raise unless all entries are tensors in files of the checkpoint: torch unpickles others."""
    for name, item in metadata.state_dict_metadata.items():
        if not isinstance(item, TensorStorageMetadata):
            raise CheckpointError(f"{name} in the metadata file is not a tensor")
    for info in (metadata.storage_data or {}).values():
        if Path(info.relative_path).name != info.relative_path:
            raise CheckpointError(
                f"the metadata file refers to {info.relative_path}, which is not in the checkpoint"
            )
        if info.transform_descriptors:
            raise CheckpointError("the metadata file requests transformed tensors")
