"""torch.distributed.checkpoint's file writer, extended to record byte ranges and checksums.

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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.futures import Future

from dsengine.checkpoints.checksums import ByteRange, hash_range
from dsengine.checkpoints.errors import CheckpointError


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
