"""All stages reach the same losses, also after a restart."""

from pathlib import Path

import pytest

from dsengine import DEEPSPEED
from sweeps import sweep
from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine


def largest_gap(curve: list[float], reference: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(curve, reference, strict=True))


@pytest.mark.parametrize("accumulation", [pytest.param(1, marks=pytest.mark.long), 4])
def test_stages_agree_in_fp32(ranks: Ranks, accumulation: int) -> None:
    reference = ranks.run("training.jobs:losses", config=config(0, accumulation))[0]
    assert reference[-1] < reference[0] - 0.1
    for stage in (1, 2, 3):
        curve = ranks.run("training.jobs:losses", config=config(stage, accumulation))[0]
        assert largest_gap(curve, reference) < 1e-6, f"stage {stage}"


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_resumed_run_continues_exactly(ranks: Ranks, stage: int, tmp_path: Path) -> None:
    schedule = {"type": "WarmupLR", "params": {"warmup_num_steps": 9}}
    results = ranks.run(
        "training.jobs:resumed",
        config=config(stage, 2, scheduler=schedule, bf16={"enabled": stage % 2 == 1}),
        folder=str(tmp_path),
    )
    uninterrupted, resumed, path, client_state, counters = results[0]
    assert resumed == uninterrupted
    assert path is not None and path.endswith("global_step6")
    assert client_state["epoch"] == 7 and client_state["global_samples"] == counters[2] // 2
    assert counters == (12, 24, 12 * 16)


@sweep(1, stage=[0, 2, 3], files=["dsengine", "deepspeed"])
def test_client_state_describes_the_saved_run(
    ranks: Ranks, stage: int, files: str, tmp_path: Path
) -> None:
    """As in DeepSpeed; entries of an earlier run that are saved again are replaced."""
    settings = config(stage)
    for loaded in ranks.run(
        "training.jobs:client_states", config=settings, folder=str(tmp_path), files=files
    ):
        for number, state in enumerate(loaded, 1):
            assert state["epoch"] == 7 and state["global_samples"] == number * 8
            assert state["ds_version"] == DEEPSPEED
            assert state["ds_config"]["train_micro_batch_size_per_gpu"] == 4
            assert state["buffer_names"] == ["steps_seen"]
            assert state["checkpoint_parallel_dimensions"] == {"pp_degree": 1, "tp_degree": 1}
            if stage == 0:
                assert state["param_shapes"] is None and state["shared_params"] is None
            else:
                assert state["param_shapes"][0]["tokens.weight"] == (61, 24)
                assert state["shared_params"] == {"head.weight": "tokens.weight"}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_client_optimizer_trains(ranks: Ranks, stage: int) -> None:
    reference = ranks.once("training.jobs:losses", config=config(0), client="AdamW", steps=8)[0]
    curve = ranks.run("training.jobs:losses", config=config(stage), client="AdamW", steps=8)[0]
    assert curve[-1] < curve[0]
    assert largest_gap(curve, reference) < 1e-6


@sweep(1, bf16=[False, True], stage=[0, 1, 2])
def test_single_rank_sees_full_model_below_stage_3(ranks: Ranks, stage: int, bf16: bool) -> None:
    settings = config(stage, bf16={"enabled": bf16})
    result = ranks.run("training.jobs:between_steps", config=settings)[0]
    assert result["seen"]["shapes"] == result["expected"]
    assert result["seen"]["plain"]
    assert result["seen"]["block"] == 24
