"""zero.Init builds the same weights in a fraction of the memory; GatheredParameters shows them."""

from pathlib import Path
from typing import Any

import pytest

from engine_storage.ranks import run_ranks

pytestmark = pytest.mark.engine
MEBI = 2**20


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks("partition", 2, tmp_path_factory.mktemp("partition"))


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
    ],
)
def test_holds_on_every_rank(said: list[dict[str, Any]], what: str) -> None:
    assert [rank[what] for rank in said] == [True, True]


def test_calling_a_divided_model_says_what_to_do(said: list[dict[str, Any]]) -> None:
    assert "dsengine.initialize" in said[0]["called"]


def test_a_rank_holds_its_share_and_one_module(tmp_path: Path) -> None:
    ranks = 4
    for rank in run_ranks("partition_memory", ranks, tmp_path):
        assert rank["rise"] <= rank["model"] / ranks + rank["largest"] + 64 * MEBI
