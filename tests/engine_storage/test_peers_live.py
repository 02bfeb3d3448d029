"""Real ranks of which one fails: the others name it and the cause, and end; checkpoints stay valid.

Each case is a job of its own. Without ``long``, two of them run: one rank is killed, one raises.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from engine_storage.scripts import run_script

pytestmark = pytest.mark.engine

QUICK = ("killed_in_backward", "raises_in_forward")
KILLED = -9
CASES = {
    "killed_in_backward": (KILLED, ["rank 1", "killed", "backward() of step 2"]),
    "killed_in_save": (KILLED, ["rank 1", "killed", "CheckpointError"]),
    "killed_in_save_of_split_layers": (KILLED, ["rank 1", "killed", "CheckpointError"]),
    "killed_in_save_of_divided_experts": (KILLED, ["rank 1", "killed", "CheckpointError"]),
    "killed_in_iter_weights": (KILLED, ["rank 1", "killed", "RankFailedError", "iter_weights"]),
    "raises_in_forward": (
        1,
        ["rank 1", "failed in forward() of step 2: ValueError: sample 17 has no label"],
    ),
    "raises_on_first_rank": (1, ["rank 0", "failed: KeyError: 'labels'"]),
    "raises_in_own_code": (1, ["rank 1", "failed: OSError: data set is gone"]),
    "caught_by_the_script": (5, ["rank 1", "forward() of step 2: ValueError: sample 17"]),
    "cannot_start": (1, ["ValueError: rank 1 cannot start", "overlap_com"]),
    "out_of_memory_while_building": (
        1,
        ["rank 1", "failed in initialize(): MemoryError: no memory for the shards"],
    ),
    "disk_full": (
        1,
        ["rank 1", "failed in initialize(): OSError: [Errno 27] File too large: cannot create"],
    ),
    "tile_cannot_be_read": (1, ["rank 1", "failed in step() of step 2: OSError: read 0 of"]),
    "leaves_early": (0, ["rank 1", "had already ended its training"]),
    "aborts_alone": (
        1,
        [
            "rank 1",
            "failed in backward() of micro step 2: OutOfMemoryError: simulated",
            "not on every other rank",
        ],
    ),
    "leaves_early ahead": (0, ["rank 1", "had already ended its training"]),
    # Hosts that run ahead notice a failure in any later phase, at the latest where they read.
    "killed_in_backward ahead": (KILLED, ["rank 1", "killed"]),
    "raises_in_forward ahead": (1, ["rank 1", "forward() of step 2: ValueError: sample 17"]),
    "raises_on_first_rank ahead": (1, ["rank 0", "failed: KeyError: 'labels'"]),
    "caught_by_the_script ahead": (5, ["rank 1", "forward() of step 2: ValueError: sample 17"]),
    "aborts_alone ahead": (
        1,
        [
            "failed in backward() of micro step 2: OutOfMemoryError: simulated",
            "not on every other rank",
        ],
    ),
    "fails_in_different_blocks ahead": (
        1,
        [
            "failed in forward() of micro step 2: OutOfMemoryError: simulated",
            "had issued 3 collectives when it failed and rank 1 4 (group 0 of 3 ranks, gloo)",
        ],
    ),
}
"""By case: exit code of the failing rank, and texts in the output of each other rank."""

STRAGGLERS = {
    "lags": [
        "ranks 0, 2 have been waiting in forward() of step 2 for",
        "rank 1",
        "has been outside of the engine for",
        "(last: step(), 1 step(s) done)",
        "(busy_with_data)",
    ],
    "lags ahead": ["ranks 0, 2 have been waiting in", "(busy_with_data)"],
    "first_rank_stops": ["forward() of step 2", "rank 0 does not respond"],
    "first_rank_stops ahead": ["rank 0 does not respond"],
    "no_data_left": [
        "rank 1",
        "has been in save_checkpoint() after step 1",
        "ranks 0, 2 have been waiting in",
    ],
}
"""By case: texts in the report of a rank that delays the others."""

ENDS_WELL = ("ends_well", "fails_alike", "joins_late")


class Ended(NamedTuple):
    """A job whose ranks have ended: its folder, and exit code and output of each rank."""

    folder: Path
    codes: list[int | None]
    logs: list[str]


Run = Callable[[str], Ended]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a case, unless it has run before."""

    @cache
    def run_once(case: str) -> Ended:
        folder = tmp_path_factory.mktemp(case.replace(" ", "-"))
        ran = run_script("peers", str(folder), case, seconds=60)
        assert ran.returncode == 0, ran.stderr[-3000:]
        logs = [(folder / f"{rank}.log").read_text() for rank in range(3)]
        return Ended(folder, json.loads(ran.stdout), logs)

    return run_once


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.long] * (case not in QUICK)) for case in CASES]
)
def test_other_ranks_report_failed_rank_and_exit(run: Run, case: str) -> None:
    code, texts = CASES[case]
    _, codes, logs = run(case)
    failing = 0 if "rank 0" in texts else 1
    assert codes[failing] == code
    for rank in {0, 1, 2} - {failing}:
        assert codes[rank] == 1
        assert [text for text in texts if text not in logs[rank]] == [], logs[rank]


@pytest.mark.long
def test_hanging_rank_exits_with_the_reason(run: Run) -> None:
    _, codes, logs = run("hangs")
    assert codes == [0, KILLED, 1]
    assert "cannot finish forward() of step 2: rank 1" in logs[2]


@pytest.mark.long
@pytest.mark.parametrize("case", STRAGGLERS)
def test_straggler_is_named(run: Run, case: str) -> None:
    _, codes, logs = run(case)
    log = logs[1 if case.startswith("first_rank_stops") else 0]
    assert [text for text in STRAGGLERS[case] if text not in log] == [], logs
    if case != "no_data_left":
        assert codes == [0, 0, 0]  # training continued


@pytest.mark.long
@pytest.mark.parametrize("case", ENDS_WELL)
def test_ranks_without_engine_may_exit_in_any_way(run: Run, case: str) -> None:
    _, codes, logs = run(case)
    assert codes == [0, 0, 0]
    # Since torch 2.15, triton reports leaks at exit.
    lines = [line for log in logs for line in log.partition("nanobind: leaked")[0].splitlines()]
    assert [line for line in lines if "[INFO] DeepSpeed info: version=" not in line] == []


@pytest.mark.long
@pytest.mark.parametrize(
    "case",
    ["killed_in_save", "killed_in_save_of_split_layers", "killed_in_save_of_divided_experts"],
)
def test_rank_killed_in_save_leaves_last_checkpoint_intact(run: Run, case: str) -> None:
    saved = run(case).folder / "saved"
    assert (saved / "latest").read_text() == "global_step1"
    assert [path.name for path in saved.glob("global_step*")] == ["global_step1"]
    from dsengine.checkpoints import Checkpointer, TrainingState
    from engine_storage.jobs.toy import ToyModel
    from training.expert_jobs import model_of

    model = model_of("own") if case.endswith("experts") else ToyModel()
    path, _ = Checkpointer().load(TrainingState(module=model), saved)
    assert path == str(saved / "global_step1")
    if isinstance(model, ToyModel):
        assert int(model.calls) == 1
