"""torch.distributed.checkpoint's files: written with checksums, read without running code.

[Note: checksums of written data]
Checksums are computed from the bytes on their way to the file, not read back: they describe the
intended contents and need no second pass over the page cache. The writer calls ``tell`` on its
stream where a range begins and ends, which is how the stream knows the ranges. If a release of
torch calls it elsewhere, the range is read back.

[Note: errors of writer threads]
torch discards exceptions of its writer threads, and the checkpoint would lack that thread's
tensors. So an error ends only its own file, and is raised when all threads are done.
"""

import io
import os
import pathlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.futures import Future

from dsengine.checkpoints.group import CheckpointError
from dsengine.checkpoints.manifest import ByteRange, hash_range
from dsengine.checkpoints.restricted_pickle import (
    DataUnpickler,
    Name,
    data_class,
    dtype_named,
    reason_of,
)
from dsengine.torch_private.pickles import metadata_path, named_in_checkpoint_metadata


class _HashedFile(io.BufferedWriter):
    """A new file. ``hashes``: checksums of bytes between ``tell`` calls, by (begin, end)."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "wb"))
        self.hashes: dict[tuple[int, int], str] = {}
        self._hash = xxhash.xxh3_64()
        self._begin = 0

    def write(self, data: Any, /) -> int:
        self._hash.update(data)
        return super().write(data)

    def tell(self) -> int:
        end = super().tell()
        if end != self._begin:
            self.hashes[self._begin, end] = self._hash.hexdigest()
            self._hash.reset()
            self._begin = end
        return end


class _HashedFiles(FileSystem):
    """``hashes``: those of its files, by name. ``errors``: exceptions of writer threads."""

    def __init__(self) -> None:
        self.hashes: dict[str, dict[tuple[int, int], str]] = {}
        self.errors: list[Exception] = []

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        try:
            file = _HashedFile(Path(path))
        except OSError as error:
            self.errors.append(error)
            raise
        self.hashes[Path(path).name] = file.hashes
        try:
            with file:
                yield file
        except Exception as error:
            self.errors.append(_named(error, path))


def _named(error: Exception, path: str | os.PathLike[str]) -> Exception:
    """Return the system's error that ``error`` is or hides, with the path; else ``error``.

    If a write fails, torch.save raises another error about the position in the file.
    """
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__context__
    return error if found is None else OSError(found.errno, found.strerror or found, str(path))


class RecordingWriter(FileSystemWriter):
    """``ranges``: by file of this rank, (offset, length) in bytes of what was written."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.fs = self._files = _HashedFiles()
        self.ranges: dict[str, list[tuple[int, int]]] = {}

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[Any]]:
        written = super().write_data(plan, planner)
        results = written.wait()
        if self._files.errors:
            raise self._files.errors[0]
        if len(results) != len(plan.items):
            raise CheckpointError(f"only {len(results)} of {len(plan.items)} tensors were written")
        for result in results:
            info = result.storage_data
            self.ranges.setdefault(info.relative_path, []).append((info.offset, info.length))
        return written

    def checksums(self, folder: Path) -> dict[str, list[ByteRange]]:
        """Return, by file in ``folder``, the ranges that this rank has written."""
        return {
            name: [self._checksum(folder / name, *span) for span in ranges]
            for name, ranges in self.ranges.items()
        }

    def _checksum(self, path: Path, offset: int, length: int) -> ByteRange:
        known = self._files.hashes.get(path.name, {}).get((offset, offset + length))
        return hash_range(path, offset, length) if known is None else (offset, length, known)


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
