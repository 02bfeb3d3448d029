"""Step times of eager attention, eager activation functions and short micro steps."""

from typing import Any

import pytest

import dsconfig
from dsconfig.cost import hardware, unfused
from dsconfig.cost.activations import Style
from dsconfig.cost.estimate import StepEstimate
from dsconfig.facts import gather
from dsconfig.facts.named_model import model


def step(name: str, length: int, *, micro: int = 1, **arguments: Any) -> StepEstimate:
    facts = gather(
        gpus=1, model=name, device="a100-80gb", seq_len=length, training_args=arguments or None
    )
    config = {
        "train_micro_batch_size_per_gpu": micro,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
    }
    resolution = dsconfig.resolve(config, facts, runtime="dsengine")
    found = dsconfig.estimate(resolution, facts).options[0].step
    assert found is not None
    return found


def bytes_of_token(name: str, length: int, **style: Any) -> float:
    shape = model(name).architecture
    assert shape is not None
    return unfused.bytes_of_token(shape, Style(**style), length)


def test_every_eager_operation_of_the_scores_is_counted() -> None:
    """GPT-2 small: 12 blocks, 12 heads. Two products, scale, mask, softmax and dropout."""
    scores = 12 * 12 * 1024
    fused = bytes_of_token("gpt2", 1024)
    eager = bytes_of_token("gpt2", 1024, flash=False, dropout=False)
    assert eager - fused == 2 * 8 * scores
    dropped = bytes_of_token("gpt2", 1024, flash=False)
    assert dropped - eager == 2 * 2.5 * scores


def test_softmax_in_fp32_moves_four_bytes() -> None:
    assert bytes_of_token("llama-2-7b", 512, flash=False) == 2 * (8 + 4) * 32 * 32 * 512
    assert bytes_of_token("llama-2-7b", 512) == 0


def test_an_eager_tanh_gelu_moves_its_eight_intermediates() -> None:
    assert bytes_of_token("gpt2", 1024) == 2 * 16 * 12 * 3072
    assert bytes_of_token("gpt2", 1024, fused=True) == 0


def test_the_host_bounds_a_short_micro_step() -> None:
    short, half = step("qwen2.5-0.5b", 64), step("qwen2.5-0.5b", 32)
    assert short.compute_seconds == pytest.approx(half.compute_seconds, rel=0.02)
    launches = hardware.LAUNCHES_OF_BLOCK * 24 * 3
    slow = launches * hardware.LAUNCH_SECONDS[1]
    assert short.high_seconds >= slow
    long = step("qwen2.5-0.5b", 4096, micro=8)
    assert long.compute_seconds > 5 * short.compute_seconds
