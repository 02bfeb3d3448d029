"""One CSV file per tag: ``{output_path}/{job_name}/Train_Samples_lr.csv``."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dsengine.observation.monitors.base import Event, log_directory


class CsvMonitor:
    """Appends ``step,value``; a file begins with a header, also over several runs."""

    def __init__(self, block: Mapping[str, Any]) -> None:
        self.directory = Path(log_directory(block))
        self.directory.mkdir(parents=True, exist_ok=True)

    def write_events(self, events: Iterable[Event]) -> None:
        for tag, value, step in events:
            path = self.directory / (tag.replace("/", "_").replace(" ", "_") + ".csv")
            with path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                if file.tell() == 0:
                    writer.writerow(["step", tag.rsplit("/", 1)[-1]])
                writer.writerow([step, value])

    def close(self) -> None:
        pass
