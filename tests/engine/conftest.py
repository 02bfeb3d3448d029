"""Fixtures with separate processes for DeepSpeed, which changes global state, and dsengine."""

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
