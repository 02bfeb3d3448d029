"""A window's gradients are summed in the dtype the config names, at every stage."""

import pytest
import torch
from torch.torch_version import TorchVersion

from dsengine.loop.counters import Accumulation, Counters
from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine

JOB = "training.accumulation_jobs:norm"
BY_HAND = "training.accumulation_jobs:norm_by_hand"


@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize(("summed", "sent"), [("bf16", "bf16"), ("fp32", "bf16"), ("fp32", "fp32")])
def test_stage_0_sums_as_by_hand(ranks: Ranks, summed: str, sent: str, branches: bool) -> None:
    types = {"summed_in": summed, "sent_in": sent, "branches": branches}
    expected = ranks.once(BY_HAND, **types)[0]
    assert ranks.run(JOB, stage=0, **types)[0] == pytest.approx(expected, rel=1e-6)


def test_stage_1_sums_a_whole_window_in_fp32_before_it_is_sent(host_ranks: Ranks) -> None:
    def gap(summed: str, sent: str) -> float:
        exact = host_ranks.once(BY_HAND, summed_in="fp32", sent_in="fp32")[0]
        return abs(host_ranks.run(JOB, stage=1, summed_in=summed, sent_in=sent)[0] / exact - 1)

    # torch 2.15 adds what one backward leaves in a tied weight in fp32 too, unlike the reference.
    newer = TorchVersion(torch.__version__) >= (2, 15)
    assert gap("fp32", "fp32") < (1e-5 if newer else 1e-6)
    # What is left of the error is that of casting once, not of eight sums.
    assert gap("fp32", "bf16") < gap("bf16", "bf16") * 0.6


@pytest.mark.parametrize("stage", [2, 3])
def test_reduced_gradients_are_summed_in_fp32(ranks: Ranks, stage: int) -> None:
    exact = ranks.once(BY_HAND, summed_in="fp32", sent_in="fp32")[0]
    got = ranks.run(JOB, stage=stage, summed_in="fp32", sent_in="fp32")[0]
    assert got == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("stage", [2, 3])
def test_a_window_that_a_script_ends_sums_in_the_same_dtype(host_ranks: Ranks, stage: int) -> None:
    of_config = host_ranks.run(JOB, stage=stage, summed_in="bf16", sent_in="bf16")[0]
    set_job = "training.accumulation_jobs:norm_of_a_set_window"
    assert host_ranks.run(set_job, stage=stage, summed_in="bf16")[0] == of_config


def test_one_rank_alone_sums_in_fp32() -> None:
    with Ranks(1) as alone:
        types = {"summed_in": "fp32", "sent_in": "bf16"}
        exact = alone.run(BY_HAND, summed_in="fp32", sent_in="fp32")[0]
        assert alone.run(JOB, stage=0, **types)[0] == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("summed", ["bf16", "fp32"])
def test_stage_0_in_16_bits_names_an_unused_parameter(ranks: Ranks, summed: str) -> None:
    settings = config(
        0,
        bf16={"enabled": True},
        data_types={"grad_accum_dtype": summed},
        zero={"ignore_unused_parameters": False},
    )
    with pytest.raises(Exception, match=r".unused\.weight. and 1 more parameters have no gradient"):
        ranks.run("training.jobs:losses", config=settings, steps=1)


def test_an_fp32_model_may_sum_in_bf16(ranks: Ranks) -> None:
    """Losses stay close, and an unused parameter is found with sums as without."""
    settings = {"data_types": {"grad_accum_dtype": "bf16"}}
    exact = ranks.run("training.jobs:losses", config=config(0, 4), steps=3)[0]
    summed = ranks.run("training.jobs:losses", config=config(0, 4, **settings), steps=3)[0]
    assert summed == pytest.approx(exact, rel=1e-2)
    assert summed != exact
    strict = config(0, **settings, zero={"ignore_unused_parameters": False})
    with pytest.raises(Exception, match=r".unused\.weight. and 1 more parameters have no gradient"):
        ranks.run("training.jobs:losses", config=strict, steps=1)


@pytest.mark.parametrize("steps", [1, 2, 4, 8])
def test_a_window_begins_where_a_checkpoint_is_loaded(steps: int) -> None:
    """One that was saved inside a window holds no gradients of it."""
    counters = Counters()
    accumulation = Accumulation(steps, managed=True, counters=counters)
    accumulation.load_state_dict(Counters(micro_steps=5, global_steps=1).state_dict())
    ends = []
    for _ in range(steps):
        ends.append(accumulation.is_boundary)
        counters.micro_steps += 1
    assert ends == [False] * (steps - 1) + [True]
