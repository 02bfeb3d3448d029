"""Fixtures and settings for all tests."""

import gc
import os
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import settings

import kernels
from training.ranks import Ranks, SharedRanks, hide_gpus

with suppress(ImportError):  # not part of every Python build
    import readline  # noqa: F401 - sets COLUMNS and LINES on import
for name in ("COLUMNS", "LINES"):
    os.unsetenv(name)
hide_gpus()  # only ranks use them, if RANKS_DEVICE is set
os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(kernels.extensions_folder()))
settings.register_profile("suite", deadline=None)  # no time limit per example
settings.load_profile("suite")


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection."""
    gc.freeze()


@pytest.fixture(scope="session")
def ranks_of() -> Iterator[SharedRanks]:
    """Shared training processes by world size, on the CPU or RANKS_DEVICE."""
    shared = SharedRanks(os.environ.get("RANKS_DEVICE", "cpu"))
    yield shared
    shared.close()


@pytest.fixture
def ranks(ranks_of: SharedRanks) -> Ranks:
    """Two shared training processes."""
    return ranks_of(2)


@pytest.fixture
def host_ranks(ranks_of: SharedRanks) -> Ranks:
    """Two shared training processes on the CPU, whatever RANKS_DEVICE is."""
    return ranks_of(2, "cpu")
