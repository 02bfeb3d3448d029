"""zero.Init builds the same weights in a fraction of the memory; GatheredParameters shows them."""

from typing import Any

import pytest

from training.ranks import Ranks, SharedRanks

pytestmark = pytest.mark.engine
MEBI = 2**20


@pytest.fixture(scope="module")
def said(ranks_of: SharedRanks) -> list[dict[str, Any]]:
    return ranks_of(2).run("engine_storage.jobs.partition:told")


@pytest.mark.parametrize(
    "what",
    [
        "partitioned Inventive",
        "equal Inventive",
        "equal ToyModel",
        "equal TransformerEncoderLayer",
        "piece is a share",
        "buffers whole",
        "ordinary inside",
        "divided again",
        "modifier's values",
        "changes discarded",
        "deep copy",
        "state dict loaded",
        "restored",
        "handed over",
        "trains",
        "shard whole inside",
        "old object whole",
        "shard changed",
        "old object changed",
        "whole at rest changed",
        "of 16 bits",
        "built unrounded",
        "a copy is ordinary",
        "gathered is rounded",
        "masters unrounded",
        "still of 16 bits",
        "cast",
    ],
)
def test_holds_on_every_rank(said: list[dict[str, Any]], what: str) -> None:
    assert [rank[what] for rank in said] == [True, True]


def test_calling_a_divided_model_says_what_to_do(said: list[dict[str, Any]]) -> None:
    assert "dsengine.initialize" in said[0]["called"]


def test_a_rank_holds_its_share_and_one_module() -> None:
    """In processes that have freed nothing yet: what is taken shows in full."""
    ranks = 4
    with Ranks(ranks) as fresh:
        for rank in fresh.run("engine_storage.jobs.partition_memory:measured"):
            assert rank["rise"] <= rank["model"] / ranks + rank["largest"] + 64 * MEBI
