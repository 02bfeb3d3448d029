"""Training with samples divided along the sequence equals training in one process."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dsengine.parallel.attention import SequenceMask
from dsengine.parallel.tiling import TiledFusedLogitsLoss, TiledMLP, sequence_tiled_compute
from narrowing import not_none
from training import sequence_jobs
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
    assert min(norm for _, norm in expected) > clip, "clipping is active"
    for curve in got:
        losses, norms = zip(*curve, strict=True)
        assert losses == pytest.approx([loss for loss, _ in expected], rel=1e-5)
        assert norms == pytest.approx([norm for _, norm in expected], rel=1e-5)


@pytest.mark.engine
@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_own_attention(ranks: Ranks, stage: int, accumulation: int) -> None:
    check(ranks, "own", stage, accumulation, "SGD", steps=6)


@pytest.mark.engine
@pytest.mark.live
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
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
    positions, masks = torch.arange(4)[None], SequenceMask()
    for length in (1, 2, 3):
        padding = torch.arange(4)[None] < length
        mask = masks.dense(positions, padding, causal=False, window=None)
        assert not_none(mask)[0, 0, 0].tolist() == padding[0].tolist()
        del padding


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
