"""torch.distributed.checkpoint's file reader, with safe unpickling of the metadata file."""

import pathlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.futures import Future

from dsengine.checkpoints.errors import CheckpointError
from dsengine.checkpoints.restricted_pickle import (
    DataUnpickler,
    Name,
    data_class,
    dtype_named,
    reason_of,
)
from dsengine.torch_private.pickles import metadata_path, named_in_checkpoint_metadata

Ranges = Callable[[], list[tuple[str, int, int]]]
"""Returns (file, offset, length) of what will be read; raises CheckpointError."""
BeforeReading = Callable[[Ranges], object]


def _allowed() -> dict[tuple[str, str], Name]:
    names = {
        key: data_class(value) if isinstance(value, type) else Name(".".join(key), value)
        for key, value in named_in_checkpoint_metadata().items()
    }
    paths = {("pathlib", name): pathlib.PurePosixPath for name in ("PosixPath", "PurePosixPath")}
    return names | {key: Name(".".join(key), value) for key, value in paths.items()}


_ALLOWED = _allowed()


class _MetadataUnpickler(DataUnpickler):
    """Unpickles only the metadata classes of torch.distributed.checkpoint."""

    def named(self, module: str, name: str) -> Any:
        return _ALLOWED.get((module, name)) or dtype_named(module, name)


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
            if not isinstance(metadata, Metadata):
                raise CheckpointError("it contains something else")
            _check_only_tensors(metadata)
        except FileNotFoundError:
            raise CheckpointError(f"{path} does not exist") from None
        except Exception as error:  # damaged data can raise anything
            reason = reason_of(error)
            raise CheckpointError(f"{path} is not a checkpoint's metadata: {reason}") from None
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
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
