"""Training with samples divided along the sequence equals training in one process."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from dsengine.parallel.masks import Rule, SequenceMasks, attend_in_blocks
from dsengine.parallel.tiling import TiledFusedLogitsLoss, TiledMLP, sequence_tiled_compute
from narrowing import not_none
from sweeps import sweep
from training import curves, sequence_jobs
from training.ranks import Ranks, SharedRanks

KINDS = [
    "causal",
    "one key head",
    "window",
    "packed",
    "left padding",
    "right padding",
    "gemma 3",
    "qwen 3",
    "mixtral",
    "no labels on a rank",
]


def check(
    ranks: Ranks,
    kind: str,
    stage: int,
    accumulation: int,
    optimizer: str,
    *,
    divided: int = 2,
    replicas: int = 1,
    steps: int = 20,
) -> None:
    options = {"kind": kind, "accumulation": accumulation, "optimizer": optimizer, "steps": steps}
    clip = 0.5
    expected = sequence_jobs.one_process(clip=clip, replicas=replicas, **options)
    got = ranks.run(
        "training.sequence_jobs:divided", clip=clip, stage=stage, ranks=divided, **options
    )
    curves.assert_equal(got, expected, clip=clip)


@pytest.mark.engine
@sweep(1, stage=[0, 1, 2, 3], accumulation=[1, 4])
def test_own_attention(ranks: Ranks, stage: int, accumulation: int) -> None:
    check(ranks, "own", stage, accumulation, "SGD", steps=6)


@pytest.mark.engine
@pytest.mark.parametrize(
    "stage", [0, *(pytest.param(stage, marks=pytest.mark.long) for stage in (1, 2)), 3]
)
def test_computation_in_tiles(ranks: Ranks, stage: int) -> None:
    options: dict[str, Any] = {"accumulation": 2, "optimizer": "SGD", "clip": 0.5, "steps": 6}
    expected = sequence_jobs.one_process("own", replicas=1, **options)
    got = ranks.run("training.sequence_jobs:divided", kind="tiled", stage=stage, **options)
    curves.assert_equal(got, expected, clip=0.5)


@pytest.mark.engine
@pytest.mark.live
@sweep(1, kind=KINDS, stage=[0, 1, 2, 3])
def test_attention_of_transformers(ranks: Ranks, kind: str, stage: int) -> None:
    check(ranks, kind, stage, 1, "SGD")


@pytest.mark.engine
@pytest.mark.live
@pytest.mark.parametrize(
    ("kind", "stage", "accumulation", "divided"),
    [("window", 3, 4, 2), ("packed", 1, 1, 2), ("causal", 2, 4, 4), ("one key head", 0, 1, 4)],
)
def test_data_and_sequence(
    ranks_of: SharedRanks, kind: str, stage: int, accumulation: int, divided: int
) -> None:
    replicas = 4 // divided
    check(
        ranks_of(4),
        kind,
        stage,
        accumulation,
        "AdamW",
        divided=divided,
        replicas=replicas,
        steps=8,
    )


@pytest.mark.engine
@pytest.mark.live
@pytest.mark.parametrize("kind", ["window", "packed", "left padding", "right padding", "gemma 3"])
def test_sequences_above_the_longest_dense_mask(ranks: Ranks, kind: str) -> None:
    job = "training.sequence_jobs:losses_with_long_masks"
    dense, blocks = (ranks.run(job, kind=kind, longest_dense=length) for length in (16, 8))
    for (losses, calls), (expected, without) in zip(blocks, dense, strict=True):
        assert losses == pytest.approx(expected, rel=1e-6)
        assert calls > 0 and without == 0


@pytest.mark.engine
@pytest.mark.live
def test_attention_is_registered_while_an_engine_uses_it(ranks: Ranks) -> None:
    """With two engines, one, none, a new one, and that freed without ``destroy``."""
    expected = [(is_own, is_own) for is_own in (False, False, True, False, True)]
    assert ranks.run("training.sequence_jobs:attention_functions") == [expected] * 2


@pytest.mark.engine
def test_gradients_are_reduced_in_the_given_dtype(ranks: Ranks) -> None:
    job = "training.sequence_jobs:reduced_bytes"
    narrow, wide = (ranks.run(job, dtype=dtype) for dtype in ("bf16", "fp32"))
    assert narrow[0] > 0 and wide == [2 * size for size in narrow]


def test_masks_are_not_taken_from_freed_paddings() -> None:
    """A script may pass the same positions each step; memory of old paddings is reused."""
    positions, masks = torch.arange(4)[None], SequenceMasks()
    for length in (1, 2, 3):
        padding = torch.arange(4)[None] < length
        mask = masks.get(positions, padding, causal=False, window=None)
        assert isinstance(mask, torch.Tensor)
        assert mask[0, 0, 0].tolist() == padding[0].tolist()
        del padding


DOCUMENTS = torch.tensor([[0] * 5 + [1] * 9 + [2] * 5, [0] * 16 + [1] * 2 + [2]])
PADDING = torch.tensor([[False] * 6 + [True] * 13, [True] * 9 + [False] * 10])
RULES = {
    "window": Rule(True, 5, None, None),
    "wide window": Rule(True, 13, None, None),
    "window in both directions": Rule(False, 6, None, None),
    "packed": Rule(True, None, DOCUMENTS, None),
    "packed alike, window": Rule(True, 4, DOCUMENTS[:1], None),
    "padding": Rule(True, None, None, PADDING),
    "padding in both directions": Rule(False, None, None, PADDING),
}


@pytest.mark.parametrize("name", RULES)
def test_blocks_contain_the_dense_mask(name: str) -> None:
    """A block is left out only if no pair is allowed, and read without the rule if all are."""
    rule, length, size = RULES[name], 19, 4
    blocks = rule.blocks(length, torch.device("cpu"), size)
    padded = torch.zeros(rule.samples, 20, 20, dtype=torch.bool)
    padded[:, :length, :length] = rule.dense(length, torch.device("cpu"))[:, 0]
    scores = padded.unflatten(2, (-1, size)).unflatten(1, (-1, size))
    some, every = scores.any(4).any(2), scores.all(4).all(2)
    partial = not_none(blocks.kv_num_blocks)[:, 0], not_none(blocks.kv_indices)[:, 0]
    full = not_none(blocks.full_kv_num_blocks)[:, 0], not_none(blocks.full_kv_indices)[:, 0]
    for expected, parts in ((some, (partial, full)), (every, (full,))):
        found = torch.zeros_like(expected)
        for counts, indices in parts:
            for sample, row in torch.cartesian_prod(*map(torch.arange, counts.shape)).tolist():
                found[sample, row, indices[sample, row, : counts[sample, row]].long()] = True
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_attention_in_blocks_equals_a_dense_mask(name: str) -> None:
    rule, length, device = RULES[name], 19, torch.device("cpu")
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, heads, length, 8) for heads in (4, 2, 2))
    dense = F.scaled_dot_product_attention(
        query, key, value, attn_mask=rule.dense(length, device), scale=0.3, enable_gqa=True
    )
    tiled = attend_in_blocks(query, key, value, rule.blocks(length, device, 4), scaling=0.3)
    assert torch.allclose(tiled, dense, atol=1e-6)


@pytest.mark.long
def test_fused_attention_that_skips_blocks() -> None:
    length, device = 300, torch.device("cpu")
    rule = Rule(True, 100, torch.arange(length)[None] // 140, None)
    query, key, value = (torch.randn(1, heads, length, 16) for heads in (4, 2, 2))
    blocks, mask = rule.blocks(length, device), rule.dense(length, device)
    dense = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    compiled: Any = torch.compile(flex_attention)
    fused = compiled(query, key, value, block_mask=blocks, enable_gqa=True)
    assert torch.allclose(fused, dense, atol=1e-5)


@pytest.mark.parametrize(
    ("option", "missing"),
    [
        ({"dropout": 0.1}, "dropout"),
        ({"position_bias": torch.zeros(1)}, "position bias"),
        ({}, "backward on the CPU"),
    ],
)
def test_attention_in_blocks_refuses_what_it_lacks(option: dict[str, Any], missing: str) -> None:
    part = torch.zeros(1, 1, 19, 8, requires_grad=not option)
    with pytest.raises(ValueError, match=f"no {missing}: use flash_attention_2"):
        attend_in_blocks(part, part, part, RULES["window"].blocks(19, part.device), **option)


def gradients(
    compute: Callable[[nn.Module, torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    layer, x = nn.Linear(6, 6), torch.randn(2, 7, 6, requires_grad=True)
    result = compute(layer, x)
    result.square().sum().backward()
    return result.detach(), not_none(x.grad), not_none(layer.weight.grad)


def rowwise(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(layer(x))


@pytest.mark.parametrize("shards", [1, 3, 7])
def test_tiled_computation_equals_whole(shards: int) -> None:
    whole = gradients(rowwise)
    for compute in (
        lambda layer, x: TiledMLP.apply(rowwise, layer, x, shards),
        lambda layer, x: sequence_tiled_compute(
            rowwise, 7, shards, {"x": x}, {"layer": layer}, output_reduction=None
        ),
    ):
        for tiled, expected in zip(gradients(compute), whole, strict=True):
            assert torch.allclose(tiled, expected, atol=1e-6)


def test_tiled_loss_equals_whole_and_never_has_all_logits() -> None:
    labels, sizes = torch.arange(14).reshape(2, 7) % 6, list[int]()

    def loss(layer: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = layer(x)
        sizes.append(logits.shape[0])
        return F.cross_entropy(logits, y, reduction="sum")

    tiled = gradients(
        lambda layer, x: TiledFusedLogitsLoss.apply(
            loss, layer, x, labels, None, 7, output_reduction="sum"
        )
    )
    assert max(sizes) == 2
    whole = gradients(lambda layer, x: loss(layer, x.flatten(0, 1), labels.flatten()))
    for got, expected in zip(tiled, whole, strict=True):
        assert torch.allclose(got, expected, rtol=1e-5)
