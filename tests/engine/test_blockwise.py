"""bitsandbytes' optimizers with 8-bit states."""

from pathlib import Path
from typing import Any

import pytest

from training.jobs import config
from training.ranks import Ranks, SharedRanks

pytest.importorskip("bitsandbytes")
pytestmark = [pytest.mark.live, pytest.mark.engine]
JOBS = "training.blockwise_jobs"


def settings(stage: int, **more: Any) -> dict[str, Any]:
    found = config(stage, **more)
    del found["optimizer"]
    return found


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_losses_are_close_to_32_bit_states(ranks: Ranks, stage: int, precision: str) -> None:
    own = settings(stage, **({"bf16": {"enabled": True}} if precision == "bf16" else {}))
    exact, narrow = (
        ranks.run(f"{JOBS}:losses", config=own, kind=kind)[0] for kind in ("AdamW", "AdamW8bit")
    )
    assert narrow != exact
    assert narrow == pytest.approx(exact, rel=0.03)


def test_the_size_of_the_full_weight_decides(ranks: Ranks) -> None:
    for rank, found in enumerate(ranks.run(f"{JOBS}:states", config=settings(3), kind="Adam8bit")):
        rows = [33, 32][rank]
        assert ("state1", "torch.uint8", (48, 64)) in found
        assert ("state2", "torch.uint8", (rows, 96)) in found
        assert ("absmax2", "torch.float32", (-(-rows * 96 // 256),)) in found
        assert ("state1", "torch.float32", (48,)) in found  # a bias


@pytest.mark.parametrize(
    ("stage", "kind"), [(0, "AdamW8bit"), (1, "Lion8bit"), (2, "Adam8bit"), (3, "AdamW8bit")]
)
def test_run_resumes_exactly(ranks: Ranks, tmp_path: Path, stage: int, kind: str) -> None:
    job = f"{JOBS}:resumed"
    expected, found = ranks.run(job, config=settings(stage), kind=kind, folder=str(tmp_path))[0]
    assert found == expected


def test_states_load_at_another_sharded_stage(ranks: Ranks, tmp_path: Path) -> None:
    expected, found = ranks.run(
        f"{JOBS}:resumed",
        config=settings(3),
        kind="AdamW8bit",
        folder=str(tmp_path),
        other=settings(1),
    )[0]
    assert found == pytest.approx(expected, rel=1e-6)


def test_another_number_of_ranks_is_refused(ranks_of: SharedRanks, tmp_path: Path) -> None:
    ranks, single = ranks_of(2), ranks_of(1)
    arguments = {"config": settings(3), "kind": "AdamW8bit", "folder": str(tmp_path)}
    ranks.run(f"{JOBS}:resumed", **arguments)
    error = single.run(f"{JOBS}:load", **arguments)[0]
    assert "CheckpointMismatchError" in error
    assert "load_optimizer_states=False" in error
    assert single.run(f"{JOBS}:load", **arguments, with_states=False)[0] == ""


def test_other_states_are_refused(ranks: Ranks, tmp_path: Path) -> None:
    arguments = {"config": settings(2), "folder": str(tmp_path)}
    ranks.run(f"{JOBS}:resumed", kind="AdamW8bit", **arguments)
    for error in ranks.run(f"{JOBS}:torch_states", **arguments):
        assert "CheckpointMismatchError" in error
        assert "exp_avg" in error


@pytest.mark.parametrize("kind", ["LAMB8bit", "AdEMAMix8bit"])
def test_updates_that_are_not_elementwise_are_refused(ranks: Ranks, kind: str) -> None:
    with pytest.raises(RuntimeError, match="cannot update sharded parameters"):
        ranks.run(f"{JOBS}:losses", config=settings(1), kind=kind)
