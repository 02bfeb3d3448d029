"""torch.distributed.checkpoint's file writer, which knows where each piece lies, and its checksum.

[Note: checksums of what is written]
They are taken of the bytes on their way into the file, not read back: so they tell what was meant,
and cost no second pass over the page cache. The writer asks its stream for its position where a
piece begins and where it ends, which is how the stream knows the pieces. Should a torch ask at
other places, the piece is read back.

[Note: errors of the threads that write]
torch drops what ends one of its threads, and the checkpoint would lack that thread's tensors. So an
error ends its file alone, and is raised when all threads are done.
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

from dsengine.checkpoints.checksums import Piece, of_piece
from dsengine.checkpoints.errors import CheckpointError


class _HashedFile(io.BufferedWriter):
    """A new file; ``hashes``: of what lay between two questions for its position, (begin, end)."""

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
    """``hashes``: those of its files, by name. ``errors``: what has ended a file too early."""

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
            self.errors.append(error)


class RecordingWriter(FileSystemWriter):
    """``places``: by file that this rank has written, (offset, length) of its pieces in bytes."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.fs = self._files = _HashedFiles()
        self.places: dict[str, list[tuple[int, int]]] = {}

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[Any]]:
        written = super().write_data(plan, planner)
        results = written.wait()
        if self._files.errors:
            raise self._files.errors[0]
        if len(results) != len(plan.items):
            raise CheckpointError(f"of {len(plan.items)} pieces {len(results)} were written")
        for result in results:
            place = result.storage_data
            self.places.setdefault(place.relative_path, []).append((place.offset, place.length))
        return written

    def pieces(self, folder: Path) -> dict[str, list[Piece]]:
        """Return, by file in ``folder``, the pieces that this rank has written."""
        return {
            name: [self._piece(folder / name, *place) for place in places]
            for name, places in self.places.items()
        }

    def _piece(self, path: Path, offset: int, length: int) -> Piece:
        known = self._files.hashes.get(path.name, {}).get((offset, offset + length))
        return of_piece(path, offset, length) if known is None else (offset, length, known)
