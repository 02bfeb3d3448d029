"""Gradients accumulate in the configured dtype at every stage."""

from typing import Any

import pytest
import torch
from torch.torch_version import TorchVersion

from dsengine.loop.counters import Accumulation, Counters
from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine

JOB = "training.accumulation_jobs:norm"
REFERENCE = "training.accumulation_jobs:reference_norm"


@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize(("summed", "sent"), [("bf16", "bf16"), ("fp32", "bf16"), ("fp32", "fp32")])
def test_stage_0_accumulates_like_plain_pytorch(
    ranks: Ranks, summed: str, sent: str, branches: bool
) -> None:
    types = {"summed_in": summed, "sent_in": sent, "branches": branches}
    expected = ranks.once(REFERENCE, **types)[0]
    assert ranks.run(JOB, stage=0, **types)[0] == pytest.approx(expected, rel=1e-6)


def test_stage_1_accumulates_in_fp32_before_reduction(host_ranks: Ranks) -> None:
    def gap(summed: str, sent: str) -> float:
        exact = host_ranks.once(REFERENCE, summed_in="fp32", sent_in="fp32")[0]
        return abs(host_ranks.run(JOB, stage=1, summed_in=summed, sent_in=sent)[0] / exact - 1)

    # Since torch 2.15 a tied weight's gradients of one backward are added in fp32 too, unlike the
    # reference.
    newer = TorchVersion(torch.__version__) >= "2.15"
    assert gap("fp32", "fp32") < (1e-5 if newer else 1e-6)
    # The remaining error is that of one cast instead of eight sums.
    assert gap("fp32", "bf16") < gap("bf16", "bf16") * 0.6


@pytest.mark.parametrize("stage", [2, 3])
def test_reduced_gradients_accumulate_in_fp32(ranks: Ranks, stage: int) -> None:
    exact = ranks.once(REFERENCE, summed_in="fp32", sent_in="fp32")[0]
    got = ranks.run(JOB, stage=stage, summed_in="fp32", sent_in="fp32")[0]
    assert got == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("stage", [2, 3])
def test_script_defined_window_accumulates_in_the_same_dtype(host_ranks: Ranks, stage: int) -> None:
    of_config = host_ranks.run(JOB, stage=stage, summed_in="bf16", sent_in="bf16")[0]
    set_job = "training.accumulation_jobs:norm_of_script_defined_window"
    assert host_ranks.run(set_job, stage=stage, summed_in="bf16")[0] == of_config


def test_single_rank_accumulates_in_fp32() -> None:
    with Ranks(1) as alone:
        exact = alone.run(REFERENCE, summed_in="fp32", sent_in="fp32")[0]
        found = alone.run(JOB, stage=0, summed_in="fp32", sent_in="bf16")[0]
        assert found == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("summed", ["bf16", "fp32"])
def test_stage_0_in_16_bits_reports_unused_parameter(ranks: Ranks, summed: str) -> None:
    settings = config(
        0,
        bf16={"enabled": True},
        data_types={"grad_accum_dtype": summed},
        zero={"ignore_unused_parameters": False},
    )
    with pytest.raises(Exception, match=r".unused\.weight. and 1 more parameters have no gradient"):
        ranks.run("training.jobs:losses", config=settings, steps=1)


def test_fp32_model_accumulates_in_bf16(ranks: Ranks) -> None:
    """Losses stay close, and an unused parameter is still reported."""
    settings: dict[str, Any] = {"data_types": {"grad_accum_dtype": "bf16"}}
    exact = ranks.run("training.jobs:losses", config=config(0, 4), steps=3)[0]
    summed = ranks.run("training.jobs:losses", config=config(0, 4, **settings), steps=3)[0]
    assert summed == pytest.approx(exact, rel=1e-2)
    assert summed != exact
    strict = config(0, **settings, zero={"ignore_unused_parameters": False})
    with pytest.raises(Exception, match=r".unused\.weight. and 1 more parameters have no gradient"):
        ranks.run("training.jobs:losses", config=strict, steps=1)


@pytest.mark.parametrize("steps", [1, 2, 4, 8])
def test_loading_a_checkpoint_starts_a_new_window(steps: int) -> None:
    """A checkpoint saved within a window contains no gradients."""
    counters = Counters()
    accumulation = Accumulation(steps, managed=True, counters=counters)
    accumulation.load_state_dict(Counters(micro_steps=5, global_steps=1).state_dict())
    ends = []
    for _ in range(steps):
        ends.append(accumulation.is_boundary)
        counters.micro_steps += 1
    assert ends == [False] * (steps - 1) + [True]
