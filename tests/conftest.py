"""For every test."""

import gc
import os
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import settings

import kernels
from training.ranks import Ranks, SharedRanks, hide_cards

with suppress(ImportError):  # not every Python is built with it
    import readline  # noqa: F401 - tells children of a terminal that is not there, once it comes
for name in ("COLUMNS", "LINES"):
    os.unsetenv(name)
hide_cards()  # only ranks take one, where they are told to
os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(kernels.built_here()))
settings.register_profile("suite", deadline=None)  # tests do not look at the clock
settings.load_profile("suite")


def pytest_collection_finish() -> None:
    """What is imported stays: no collection of garbage need look at it."""
    gc.freeze()


@pytest.fixture(scope="session")
def ranks_of() -> Iterator[SharedRanks]:
    """Training processes by their number, for all tests that leave them as they find them.

    On the host, or where RANKS_DEVICE says.
    """
    shared = SharedRanks(os.environ.get("RANKS_DEVICE", "cpu"))
    yield shared
    shared.close()


@pytest.fixture
def ranks(ranks_of: SharedRanks) -> Ranks:
    """Two training processes that most tests share."""
    return ranks_of(2)


@pytest.fixture
def host_ranks(ranks_of: SharedRanks) -> Ranks:
    """Two that train on the host wherever the others do: for what is true of the host alone."""
    return ranks_of(2, "cpu")
