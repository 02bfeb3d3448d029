"""Two pairs of processes side by side: what DeepSpeed has touched, the engine does not run in."""

from collections.abc import Iterator

import pytest

from training.ranks import Ranks, SharedRanks


@pytest.fixture(scope="module")
def deepspeed() -> Iterator[Ranks]:
    with Ranks(2) as running:
        yield running


@pytest.fixture(scope="module")
def ours(ranks_of: SharedRanks) -> Ranks:
    return ranks_of(2)
