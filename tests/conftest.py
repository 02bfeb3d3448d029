"""For every test."""

import os
import readline  # noqa: F401 - on its first import, which is a debugger's somewhere, see below
from collections.abc import Iterator

import pytest
from hypothesis import settings

from training.ranks import Ranks, SharedRanks, hide_cards

for name in ("COLUMNS", "LINES"):  # readline tells every child of a terminal that is not there
    os.unsetenv(name)
hide_cards()  # only ranks take one, where they are told to
settings.register_profile("suite", deadline=None)  # tests do not look at the clock
settings.load_profile("suite")


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
