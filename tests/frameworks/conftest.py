"""Ranks for tests of transformers models."""

from collections.abc import Iterator

import pytest

from training.ranks import Ranks, SharedRanks


@pytest.fixture(scope="module")
def own_ranks() -> Iterator[SharedRanks]:
    """Separate ranks, because transformers may import DeepSpeed, or dsengine replace it."""
    own = SharedRanks()
    yield own
    own.close()


@pytest.fixture
def two(own_ranks: SharedRanks) -> Ranks:
    return own_ranks(2)
