"""``engine.generate`` gathers once per call, and ranks may generate different numbers of tokens."""

from collections.abc import Iterator
from typing import Any

import pytest

from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine
JOBS = "training.generation_jobs"
SHARDED = config(3, zero={"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0})
"""Each unit is resharded after forward."""
BF16: dict[str, Any] = {"bf16": {"enabled": True}}
HOST: dict[str, Any] = {"offload_param": {"device": "cpu"}}


@pytest.mark.parametrize(
    "settings",
    [SHARDED, config(3, **BF16), config(3, zero=HOST, **BF16)],
    ids=["fp32", "bf16", "offloaded"],
)
def test_parameters_are_gathered_once(ranks: Ranks, settings: dict[str, Any]) -> None:
    plain = ranks.once("training.jobs:losses", config=settings, steps=2)[0]
    for result in ranks.run(f"{JOBS}:gathers", settings=settings, gather_once=None):
        assert result["counts"][0] == result["counts"][1] > 0
        assert result["forward"] > 0  # resharded after generate
        assert len(set(result["results"])) == 1
        assert result["losses"] == plain


def test_blocks_are_gathered_in_each_forward_on_request(ranks: Ranks) -> None:
    for result in ranks.run(f"{JOBS}:gathers", settings=SHARDED, gather_once=False):
        assert result["counts"] == [result["forward"], 9 * result["forward"]]
        assert len(set(result["results"])) == 1


@pytest.mark.parametrize("stage", [1, 2])
def test_full_parameters_are_not_gathered(ranks: Ranks, stage: int) -> None:
    for result in ranks.run(f"{JOBS}:gathers", settings=config(stage), gather_once=None):
        assert result["counts"] == [0, 0] and len(set(result["results"])) == 1


def test_ranks_generate_unequal_lengths_and_fail_alone(ranks: Ranks) -> None:
    plain = ranks.once("training.jobs:losses", config=config(3), steps=4)[0]
    first, second = ranks.run(f"{JOBS}:unequal", settings=config(3), seconds=60)
    assert first["losses"] == second["losses"] == plain
    assert first["error"] == "" and "integer" in second["error"]


def test_parameters_that_do_not_fit_are_gathered_by_block(ranks: Ranks) -> None:
    for result in ranks.run(f"{JOBS}:without_memory", settings=SHARDED):
        assert result["counts"] == [result["forward"], 9 * result["forward"]]


@pytest.mark.parametrize("stage", [1, 2])
def test_units_of_several_modules_stay_full(ranks: Ranks, stage: int) -> None:
    for found in ranks.run(f"{JOBS}:plain_between_steps", settings=config(stage)):
        assert found == [True, True, True]


def test_a_model_without_generate_is_an_error(ranks: Ranks) -> None:
    assert "generate" in ranks.run(f"{JOBS}:cannot_generate")[0]


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    """Separate ranks, because transformers may import DeepSpeed."""
    with Ranks(2) as own:
        yield own


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engines", [2, 4])
def test_policies_generate_the_tokens_of_one_process(two: Ranks, engines: int) -> None:
    """Shares of the batch have other lengths; with per-block gathers ranks wait for each other."""
    job = f"{JOBS}:policy_loop"
    with Ranks(1) as one:
        (expected,) = one.run(job, stage=0, shares=2, engines=engines)
    assert len({str(tokens) for tokens in expected}) == 3
    for stage, gather_once in ((3, None), (3, False), (2, None)):
        arguments = {"stage": stage, "engines": engines, "gather_once": gather_once}
        first, second = two.run(job, shares=1, seconds=120, **arguments)
        both = [[*own, *other] for own, other in zip(first, second, strict=True)]
        assert both == expected
