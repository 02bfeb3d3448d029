"""Activations are divided by the ranks of a sample; tiles bound the memory of the loss."""

import pytest

from dsconfig.cost.activations import Style, block_bytes
from dsconfig.facts import hf_config
from narrowing import not_none
from training.ranks import Ranks, SharedRanks
from training.sequence_memory_jobs import BATCH, LENGTH, VOCABULARY

pytestmark = pytest.mark.engine
JOBS = "training.sequence_memory_jobs"


@pytest.mark.live
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_blocks_keep_their_part_of_the_estimate(ranks_of: SharedRanks, ranks: int) -> None:
    for measured, config in ranks_of(ranks).run(f"{JOBS}:block_bytes", ranks=ranks):
        shape = not_none(hf_config.model(config).architecture)
        linear = block_bytes(shape, Style(width=4, exchanges=ranks > 1)).linear
        estimate = linear * BATCH * LENGTH * shape.hidden_size / ranks
        assert measured == pytest.approx(estimate, rel=0.01)


@pytest.mark.live
def test_blocks_of_split_layers_keep_their_part_of_the_estimate() -> None:
    with Ranks(2) as ranks:  # in others, a job has replaced the attention
        found = ranks.run(f"{JOBS}:block_bytes", ranks=1, tensor=2)
    for measured, config in found:
        shape = not_none(hf_config.model(config).architecture)
        block = block_bytes(shape, Style(width=4))
        divided = block.undivided + (block.linear - block.undivided) / 2
        assert measured == pytest.approx(divided * BATCH * LENGTH * shape.hidden_size, rel=0.02)


@pytest.mark.live
def test_states_of_split_layers_are_those_of_the_estimate(ranks: Ranks) -> None:
    for relative in ranks.run(f"{JOBS}:split_states", tensor=2):
        assert relative == pytest.approx({"weights": 1.0, "moments": 1.0}, rel=0.02)


@pytest.mark.live
@pytest.mark.parametrize(
    "family",
    ["llama", "gemma3_text", "qwen3_moe", "mixtral", "olmo2", "phi3", "deepseek_v3", "granitemoe"],
)
def test_weights_that_a_plan_leaves_whole_are_counted_whole(ranks: Ranks, family: str) -> None:
    for found, estimated in ranks.run(f"{JOBS}:split_weights", family=family, tensor=2):
        assert found == estimated


def test_tiled_loss_has_no_logits_of_the_sequence_and_a_flat_peak(ranks: Ranks) -> None:
    short, long = 512, 2048
    full = ranks.run(f"{JOBS}:loss_memory", length=short, tiled=False)
    tiled = ranks.run(f"{JOBS}:loss_memory", length=short, tiled=True)
    longer = ranks.run(f"{JOBS}:loss_memory", length=long, tiled=True)
    for each, other, more in zip(full, tiled, longer, strict=True):
        assert each["elements"] == short * VOCABULARY
        assert other["elements"] == more["elements"] < short * VOCABULARY / 4
        assert more["peak"] == pytest.approx(other["peak"], rel=0.1)
        assert other["loss"] == pytest.approx(each["loss"], rel=1e-6)
