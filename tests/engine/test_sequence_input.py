"""Input that cannot be divided along the sequence: one error on every rank, before training."""

import re
from typing import Any, cast

import pytest
import torch
from torch import nn

from dsengine.parallel.attention import refuse_undivided
from dsengine.parallel.divisible import refuse_heads
from dsengine.parallel.transformers_attention import register
from training import sequence_jobs
from training.ranks import Ranks, SharedRanks

JOBS = "training.sequence_input_jobs"


@pytest.mark.engine
def test_loader_divides_the_batches_of_all_ranks(ranks: Ranks) -> None:
    first, second = ranks.run(f"{JOBS}:loaded", positions=True, lengths=[4, 4])
    assert [name for name, *_ in first] == ["rank 0", "rank 1", "rank 0", "rank 1"]
    assert first[1] == ("rank 1", [[100, 101]], [[101, 102]])
    assert second[1] == ("rank 1", [[102, 103]], [[103, -100]])


@pytest.mark.engine
def test_loaders_end_with_the_shortest(ranks: Ranks) -> None:
    for parts in ranks.run(f"{JOBS}:uneven"):
        assert [name for name, *_ in parts] == ["rank 0", "rank 1"]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("positions", "lengths", "words"),
    [
        (False, [4, 4], "position_ids in every batch"),
        (True, [4, 5], "5 tokens cannot be divided over sequence_parallel_size 2: .* use 1"),
    ],
)
def test_loader_explains_what_is_missing_on_every_rank(
    ranks: Ranks, positions: bool, lengths: list[int], words: str
) -> None:
    messages = ranks.run(f"{JOBS}:loaded", positions=positions, lengths=lengths)
    assert len(set(messages)) == 1
    assert re.search(words, messages[0])


@pytest.mark.engine
@pytest.mark.live
@pytest.mark.parametrize(
    ("degrees", "words"),
    [
        (
            [2, 2, 4, 4],
            r"rank 2 calls initialize_sequence_parallel\(4\), but rank 0 calls .*\(2\): .* same",
        ),
        (
            [2, 2, 1, 1],
            r"rank 2 calls initialize\(\), but rank 0 calls initialize_sequence_.*\(2\): .* same",
        ),
        ([3, 3, 3, 3], "sequence_parallel_size 3 does not divide 4 ranks: use 2"),
    ],
)
def test_script_with_wrong_degrees(ranks_of: SharedRanks, degrees: list[int], words: str) -> None:
    messages = ranks_of(4).run(f"{JOBS}:started", degrees=degrees)
    assert len(set(messages)) == 1 and re.search(words, messages[0])


@pytest.mark.engine
@pytest.mark.live
@pytest.mark.parametrize(
    ("degrees", "words"),
    [
        ([2, 2, 4, 4], "rank 2 has a different config than rank 0: sequence_parallel_size is 4"),
        ([3, 3, 3, 3], "sequence_parallel_size 3 does not divide 4 ranks: use 2"),
    ],
)
def test_config_with_wrong_degrees(ranks_of: SharedRanks, degrees: list[int], words: str) -> None:
    for message in ranks_of(4).run(f"{JOBS}:configured", degrees=degrees):
        assert re.search(words, message)


class Ranked:
    """As much of a process group as the checks of head counts need."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def size(self) -> int:
        return self.ranks


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks", "words"),
    [
        (12, 12, 8, "12 attention heads .* cannot be divided .* 8: use 4"),
        (24, 6, 4, "6 key/value heads .* use 2"),
        (7, 7, 4, "7 attention heads .* use 1"),
    ],
)
def test_head_counts_that_do_not_divide(heads: int, kv_heads: int, ranks: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        refuse_heads(heads, kv_heads, ranks)


@pytest.mark.live
@pytest.mark.parametrize("kind", ["eager", "flex_attention", "unknown"])
def test_attention_without_known_masks_is_refused(kind: str) -> None:
    model = sequence_jobs.transformer("causal")
    model.config._attn_implementation = kind
    with pytest.raises(ValueError, match="does not support sequence parallelism"):
        register(model, kind, cast(Any, Ranked(2)))


@pytest.mark.parametrize(
    ("mask", "options", "words"),
    [
        (None, {}, "Linear gets none"),
        (None, {"position_bias": torch.zeros(1)}, "passes position_bias to its attention"),
        (None, {"s_aux": torch.zeros(4)}, "passes s_aux to its attention"),
        (torch.ones(2, 1, 4, 4, dtype=torch.bool), {}, "passes a mask of its own"),
        (torch.ones(2, 4), {}, "passes a mask of its own"),
        (torch.ones(2, 2, dtype=torch.bool), {}, "passes a mask of its own"),
    ],
)
def test_what_attention_cannot_divide(
    mask: torch.Tensor | None, options: dict[str, Any], words: str
) -> None:
    positions = {} if words == "Linear gets none" else {"position_ids": torch.arange(2)[None]}
    with pytest.raises(ValueError, match=words):
        refuse_undivided(nn.Linear(1, 1), mask, positions | options, 4)


def test_other_tensors_of_a_forward_reach_attention() -> None:
    options = {"position_ids": torch.arange(2)[None], "shift_labels": torch.zeros(1, 2)}
    refuse_undivided(nn.Linear(1, 1), torch.ones(2, 4, dtype=torch.bool), options, 4)
