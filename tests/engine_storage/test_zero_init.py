"""zero.Init builds the same weights with less memory; GatheredParameters unshards them."""

from typing import Any

import pytest

from training.ranks import Ranks, SharedRanks

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def outcomes(ranks_of: SharedRanks) -> list[dict[str, Any]]:
    return ranks_of(2).run("engine_storage.jobs.partition:outcomes")


@pytest.mark.parametrize(
    "outcome",
    [
        "partitioned VariedInit",
        "equal VariedInit",
        "equal ToyModel",
        "equal TransformerEncoderLayer",
        "shard is one rank's share",
        "buffers unsharded",
        "ordinary inside",
        "partitioned again",
        "modifier's values",
        "changes discarded",
        "deep copy",
        "state dict loaded",
        "restored",
        "handed over",
        "trains",
        "shard unsharded inside",
        "old object unsharded",
        "shard changed",
        "old object changed",
        "unsharded unit changed",
        "appears in 16 bits",
        "built unrounded",
        "a copy is ordinary",
        "gathered is rounded",
        "masters unrounded",
        "still in 16 bits",
        "cast",
    ],
)
def test_outcome_on_every_rank(outcomes: list[dict[str, Any]], outcome: str) -> None:
    assert [rank[outcome] for rank in outcomes] == [True, True]


def test_calling_a_sharded_model_explains_the_fix(outcomes: list[dict[str, Any]]) -> None:
    assert "dsengine.initialize" in outcomes[0]["called"]


def test_peak_memory_is_the_shards_and_one_parameter() -> None:
    """The heap is trimmed for each of 96 layers and the embedding, and at the end."""
    with Ranks(2) as own:  # earlier jobs of shared ranks may keep a tensor alive
        measured = own.run("engine_storage.jobs.partition_memory:measured")
    for rank in measured:
        assert rank["left"] == rank["model"] / 2
        # A thread of gloo may hold the tensor before the largest one, a bias, for a moment.
        assert rank["peak"] <= rank["left"] + rank["largest"] + rank["smallest"]
        assert rank["trims"] == 96 + 1 + 1
