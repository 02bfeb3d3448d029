"""torch.distributed.checkpoint's file writer, which remembers where each piece lies."""

from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.futures import Future


class RecordingWriter(FileSystemWriter):
    """``places``: by file that this rank has written, (offset, length) of its pieces in bytes."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.places: dict[str, list[tuple[int, int]]] = {}

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[Any]]:
        written = super().write_data(plan, planner)
        for result in written.wait():
            place = result.storage_data
            self.places.setdefault(place.relative_path, []).append((place.offset, place.length))
        return written
