"""Merged and separate adapters of peft, as peft writes them; the model does not change."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from training.adapter_jobs import ADAPTERS, settings
from training.ranks import Ranks

pytestmark = [pytest.mark.live, pytest.mark.engine, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("peft")
JOBS = "training.adapter_jobs"
BF16 = {"bf16": {"enabled": True}}


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    """Separate ranks, because transformers may import DeepSpeed."""
    with Ranks(2) as own:
        yield own


@pytest.mark.parametrize("stage", [0, 1, 3])
@pytest.mark.parametrize("precision", [{}, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", ADAPTERS)
def test_adapters_are_exported_as_peft_saves_them(
    two: Ranks, tmp_path: Path, kind: str, precision: dict[str, Any], stage: int
) -> None:
    config = settings(stage, **precision)
    for result in two.run(f"{JOBS}:exported", kind=kind, config=config, folder=str(tmp_path)):
        assert result["merged"] == [] and result["adapter"] == []
        assert result["changed"] == []
        assert result["metadata"]


@pytest.mark.parametrize("stage", [1, 3])
def test_peak_of_merging_is_a_bucket_and_three_tensors(two: Ranks, stage: int) -> None:
    for result in two.run(f"{JOBS}:peak", config=settings(stage), nbytes=16_000):
        assert result["peak"] <= 16_000 + 3 * result["largest"] < result["total"]


def test_a_tied_weight_is_merged_only_where_it_is_adapted(two: Ranks) -> None:
    names, equal = two.run(f"{JOBS}:tied", config=settings(3))[0]
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= set(names)
    assert equal == {"model.embed_tokens.weight": False, "lm_head.weight": True}


def test_learned_prompts_are_refused(two: Ranks) -> None:
    errors = two.run(f"{JOBS}:prompts", config=settings(3))[0]
    assert len(errors) == 2 and all(error.endswith("pass names='module'") for error in errors)
