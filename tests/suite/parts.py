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
    proves: str
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
        "files are read, checked, resolved, estimated and planned as recorded from the real "
        "programs; every command, end to end",
        f"not engine and not deep and not ({LATER})",
    ),
    Part(
        "engine",
        "dsengine trains, saves, loads and fails as documented, on two ranks",
        f"engine and not deep and not ({LATER})",
        by_file=True,
    ),
)

_PROGRAMS = "dsconfig predicts the real deepspeed, transformers and accelerate"
_FRAMEWORKS = "scripts of the frameworks train alike on dsengine and DeepSpeed"
_JOBS = "complete jobs and all variants of sweeps"
SLICES = {
    "programs-1": (_PROGRAMS, ("tests",)),
    "programs-2": (_PROGRAMS, ("tests/checks",)),
    "frameworks-1": (_FRAMEWORKS, ("tests/frameworks",)),
    "frameworks-2": (_FRAMEWORKS, ("tests/frameworks/test_families.py",)),
    "frameworks-3": (
        _FRAMEWORKS,
        ("tests/frameworks/test_their_tests.py", "tests/deepspeed_tests"),
    ),
    "browser": (
        "the page and the documentation site work in Chromium",
        ("tests/website", "tests/cost/test_page_browser.py"),
    ),
    "clusters": (
        "job files are accepted by Slurm, Kubeflow, SkyPilot; the examples run",
        ("tests/commands/test_cluster_jobs.py", "tests/commands/test_jobs.py", "tests/examples"),
    ),
    "peers": (
        "ranks that die, hang or are replaced are named, and checkpoints stay valid",
        (
            "tests/engine_storage/test_peers.py",
            "tests/engine_storage/test_peers_live.py",
            "tests/engine_storage/test_kill.py",
            "tests/engine_storage/test_vanishing.py",
            "tests/engine_storage/test_recovery_under_replacement.py",
            "tests/engine/test_soak.py",
        ),
    ),
    "launchers": (
        "dsconfig run and torchrun on one and several nodes start, stop and restart ranks",
        (
            "tests/commands/test_nodes.py",
            "tests/commands/test_run.py",
            "tests/commands/test_stopping.py",
            "tests/engine/test_launcher.py",
        ),
    ),
    "jobs-1": (_JOBS, ("tests/engine",)),
    "jobs-2": (_JOBS, ("tests/engine_storage",)),
    "jobs-3": (_JOBS, ("tests/cost", "tests/conversion")),
}
"""By slice: what it proves, and its files and folders. The longest path that matches decides."""


def slice_parts() -> list[Part]:
    """Return the slices of ``make test-all``; each later test belongs to one of them."""
    every = [(name, path) for name, (_, paths) in SLICES.items() for path in paths]
    parts: list[Part] = []
    for name, (proves, paths) in SLICES.items():
        ignored = [
            other
            for owner, other in every
            if owner != name and any(other.startswith(f"{path}/") for path in paths)
        ]
        marks = f"({LATER}) and not deep"
        parts.append(Part(name, proves, marks, paths, tuple(ignored), by_file=True))
    return parts
