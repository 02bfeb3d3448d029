"""The parts of ``make test`` and the slices of ``make test-all``: which tests each runs."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LATER = "live or browser or long"
"""Marks of tests that run in a slice of ``make test-all``."""


@dataclass(frozen=True)
class Part:
    """Tests that one run of pytest selects."""

    name: str
    marks: str
    paths: tuple[str, ...] = ("tests",)
    ignored: tuple[str, ...] = ()
    by_file: bool = False
    """Whether one worker runs all tests of a file, which share ranks."""

    def arguments(self) -> list[str]:
        """Return the arguments of pytest."""
        spread = ["--dist", "loadfile", "--no-loadscope-reorder"] if self.by_file else []
        ignored = [f"--ignore={path}" for path in self.ignored]
        return ["-n", "2", *spread, "-m", self.marks, *ignored, *self.paths]


TEST = (
    Part(
        "unit",
        f"not engine and not deep and not ({LATER})",
    ),
    Part(
        "engine",
        f"engine and not deep and not ({LATER})",
        by_file=True,
    ),
)

SLICES = {
    "programs-1": ("tests",),
    "programs-2": ("tests/checks",),
    "frameworks": ("tests/frameworks", "tests/deepspeed_tests"),
    "browser": ("tests/website", "tests/cost/test_page_browser.py"),
    "clusters": (
        "tests/commands/test_cluster_jobs.py",
        "tests/commands/test_jobs.py",
        "tests/examples",
    ),
    "peers": (
        "tests/engine_storage/test_peers.py",
        "tests/engine_storage/test_peers_live.py",
        "tests/engine_storage/test_kill.py",
        "tests/engine_storage/test_vanishing.py",
        "tests/engine_storage/test_recovery_under_replacement.py",
        "tests/engine/test_soak.py",
    ),
    "launchers": (
        "tests/commands/test_nodes.py",
        "tests/commands/test_run.py",
        "tests/commands/test_stopping.py",
        "tests/engine/test_launcher.py",
    ),
    "jobs-1": ("tests/engine",),
    "jobs-2": ("tests/engine_storage",),
    "jobs-3": ("tests/cost", "tests/conversion"),
}
"""Files and folders of each slice. The longest path that matches decides."""


def slice_parts() -> list[Part]:
    """Return the slices of ``make test-all``; each later test belongs to one of them."""
    every = [(name, path) for name, paths in SLICES.items() for path in paths]
    parts: list[Part] = []
    for name, paths in SLICES.items():
        ignored = [
            other
            for owner, other in every
            if owner != name and any(other.startswith(f"{path}/") for path in paths)
        ]
        marks = f"({LATER}) and not deep"
        parts.append(Part(name, marks, paths, tuple(ignored), by_file=True))
    return parts
