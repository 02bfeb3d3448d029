"""Two training processes."""

import pytest

from training.ranks import Ranks, SharedRanks


@pytest.fixture
def ours(ranks_of: SharedRanks) -> Ranks:
    return ranks_of(2)
