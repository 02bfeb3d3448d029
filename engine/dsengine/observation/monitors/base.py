"""What a monitor is: it takes (tag, value, step) tuples; ``step`` counts samples."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

Event = tuple[str, float, int]


class Monitor(Protocol):
    def write_events(self, events: Iterable[Event]) -> None: ...

    def close(self) -> None: ...


class MissingPackageError(ImportError):
    """A monitor is switched on whose package is not installed."""

    def __init__(self, block: str, package: str) -> None:
        super().__init__(
            f"{block}.enabled is true, but the package {package} is not installed: "
            f"pip install {package}, or switch the monitor off"
        )


def setting(block: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Return a key of a monitor's block; null counts as absent."""
    value = block.get(name)
    return default if value is None else value


def log_directory(block: Mapping[str, Any]) -> str:
    """Return ``output_path/job_name``."""
    from pathlib import Path

    path = Path(setting(block, "output_path", ""))
    return str(path / setting(block, "job_name", "DeepSpeedJobName"))
