"""Bad checkpoints and failing saves are clear errors on every rank, and nothing is lost."""

from pathlib import Path
from typing import Any

import pytest

from training.ranks import SharedRanks

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def told(ranks_of: SharedRanks, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = str(tmp_path_factory.mktemp("faults") / "saved")
    return ranks_of(2).run("engine_storage.jobs.faults:told", folder=folder)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("no such tag", ["global_step99", "does not exist"]),
        ("another model", ["CheckpointMismatchError", "missing in the checkpoint: 0.weight"]),
        ("another model", ["not in the model: ", "embedding.weight"]),
        ("another shape", ["blocks.1.up.weight ((36, 12) in the checkpoint, (40, 12) in the"]),
        ("another optimizer", ["AdamW", "Adagrad", "load_optimizer_states=False"]),
        ("truncated", ["__1_0.distcp", "truncated"]),
        ("missing file", ["__1_0.distcp", "missing"]),
        ("foreign state", ["training_state.pt", "cannot be read"]),
        ("malicious metadata", ["metadata file contains", "not data"]),
        ("deepspeed", ["written by DeepSpeed", "deepspeed_layout"]),
        ("full disk", ["CheckpointError", "rank 1", "File too large"]),
        ("thread", ["CheckpointError", "rank 1", "no space for this thread"]),
        ("client state", ["ValueError", "client_state['bad']", "Malice"]),
        ("changed state", ["training_state.pt", "have changed since", "verify=False"]),
        ("a weight that is no tensor", ["model.embedding.weight", "is not a tensor"]),
        ("a weight elsewhere", ["../global_step1/__", "not in the checkpoint"]),
        ("flipped bit", ["rank 1", "__1_0.distcp", "have changed since they were written"]),
        ("tag ../x", ["ValueError", "'../x'"]),
        ("tag latest", ["ValueError", "'latest'"]),
        ("tag step1 ", ["ValueError", "'step1 '", "blanks"]),
        ("own disks", ["CheckpointError", "rank 1", "storage shared by all nodes"]),
        ("tags differ", ["step0", "step1"]),
        ("async failure", ["CheckpointError", "File exists"]),
    ],
)
def test_every_rank_hears_what_is_wrong(
    told: list[dict[str, Any]], case: str, words: list[str]
) -> None:
    for rank in told:
        assert [word for word in words if word not in rank[case]] == [], rank[case]


def test_an_empty_directory_is_nothing_to_load(told: list[dict[str, Any]]) -> None:
    assert told[0]["nothing"] is None


def test_no_code_of_a_checkpoint_runs(told: list[dict[str, Any]]) -> None:
    assert told[0]["malice ran"] is False


def test_a_failed_save_leaves_the_last_checkpoint(told: list[dict[str, Any]]) -> None:
    assert told[0]["latest after it"] == "global_step1"
    assert "global_step2" not in told[0]["visible after it"]
    assert told[0]["intact"] == ""


def test_a_refused_load_leaves_the_weights(told: list[dict[str, Any]]) -> None:
    assert [rank["weights after it"] for rank in told] == [True, True]


def test_a_load_that_is_not_verified_takes_what_is_there(told: list[dict[str, Any]]) -> None:
    assert [rank["unverified"] for rank in told] == ["", ""]


def test_a_whole_checkpoint_is_verified_without_loading_it(told: list[dict[str, Any]]) -> None:
    [fault] = told[0]["faults"]
    assert "__1_0.distcp" in fault
    assert told[0]["faults of a whole one"] == []


def test_client_state_comes_back(told: list[dict[str, Any]]) -> None:
    assert told[0]["client state back"] is True


def test_asynchronous_saves_hold_the_moment_of_the_call(told: list[dict[str, Any]]) -> None:
    for rank in told:
        assert rank["async returned early"]
        assert rank["async saved"]


def test_only_the_newest_are_kept_and_never_without_latest(told: list[dict[str, Any]]) -> None:
    assert told[0]["retained"] == ["global_step1", "global_step3", "global_step4"]
    assert told[0]["retained files"] == [*told[0]["retained"], "latest"]


def test_left_out_frozen_parameters_are_not_missed(told: list[dict[str, Any]]) -> None:
    assert told[0]["without frozen"] == ""


def test_two_processes_never_see_a_part(tmp_path: Path) -> None:
    from dsengine.checkpoints import directory

    with directory.PendingCheckpoint(tmp_path, "global_step1") as pending:
        (pending.create() / "data").write_text("1")
        assert list(tmp_path.glob("global_step*")) == []
        pending.publish()
    with directory.PendingCheckpoint(tmp_path, "global_step1") as pending:
        (pending.create() / "data").write_text("2")
        assert (tmp_path / "global_step1" / "data").read_text() == "1"
        pending.publish()
    assert (tmp_path / "global_step1" / "data").read_text() == "2"
    assert [path.name for path in tmp_path.iterdir()] == ["global_step1"]
