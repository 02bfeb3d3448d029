"""Invalid checkpoints and failing saves raise clear errors on every rank and lose nothing."""

from pathlib import Path
from typing import Any

import pytest

from training.axes import AXES
from training.ranks import Ranks, SharedRanks

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def outcomes(
    ranks_of: SharedRanks, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    folder = str(tmp_path_factory.mktemp("faults") / "saved")
    return ranks_of(2).run("engine_storage.jobs.faults:outcomes", folder=folder)


@pytest.mark.parametrize(
    ("case", "texts"),
    [
        ("no such tag", ["global_step99", "does not exist"]),
        ("another model", ["CheckpointMismatchError", "missing in the checkpoint: 0.weight"]),
        ("another model", ["not in the model: ", "embedding.weight"]),
        ("another shape", ["blocks.1.up.weight ((36, 12) in the checkpoint, (40, 12) in the"]),
        ("another optimizer", ["AdamW", "Adagrad", "load_optimizer_states=False"]),
        ("truncated", ["__1_0.distcp", "truncated"]),
        ("missing file", ["__1_0.distcp", "missing"]),
        ("foreign state", ["training_state.pt", "cannot be read"]),
        ("malicious metadata", ["checkpoint's metadata", "not allowed in a checkpoint"]),
        ("deepspeed", ["written by DeepSpeed", "checkpoint convert"]),
        ("full disk", ["CheckpointError", "rank 1", "File too large"]),
        ("thread", ["CheckpointError", "rank 1", "no space for this thread"]),
        ("client state", ["ValueError", "client_state['bad']", "Malicious"]),
        ("changed state", ["training_state.pt", "have changed since", "verify=False"]),
        ("a weight that is not a tensor", ["model.embedding.weight", "is not a tensor"]),
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
def test_every_rank_raises_the_error(
    outcomes: list[dict[str, Any]], case: str, texts: list[str]
) -> None:
    for rank in outcomes:
        assert [text for text in texts if text not in rank[case]] == [], rank[case]


def test_empty_directory_loads_nothing(outcomes: list[dict[str, Any]]) -> None:
    assert outcomes[0]["nothing"] is None


def test_code_in_a_checkpoint_does_not_run(outcomes: list[dict[str, Any]]) -> None:
    assert outcomes[0]["malicious code ran"] is False


def test_failed_save_keeps_last_checkpoint(outcomes: list[dict[str, Any]]) -> None:
    assert outcomes[0]["latest after it"] == "global_step1"
    assert "global_step2" not in outcomes[0]["visible after it"]
    assert outcomes[0]["intact"] == ""


def test_refused_load_keeps_weights(outcomes: list[dict[str, Any]]) -> None:
    assert [rank["weights after it"] for rank in outcomes] == [True, True]


@pytest.mark.parametrize("axis", AXES)
def test_every_rank_raises_the_error_of_a_divided_model(
    ranks: Ranks, tmp_path: Path, axis: str
) -> None:
    job = "engine_storage.jobs.faults:of_divided_model"
    first, second = ranks.run(job, axis=axis, folder=str(tmp_path))
    assert first == second
    for case, texts in {
        "short": ["short", "__1_0.distcp", "truncated"],
        "flipped": ["flipped/__1_0.distcp", "have changed since they were written"],
        "full disk": ["CheckpointError", "rank 1", "File too large", "/__1_"],
    }.items():
        assert [text for text in texts if text not in first[case]] == [], first[case]
    assert first["unchanged"] and first["latest"] == "good" and first["loaded"]


def test_unverified_load_accepts_changed_data(outcomes: list[dict[str, Any]]) -> None:
    assert [rank["unverified"] for rank in outcomes] == ["", ""]


def test_checksums_are_verified_without_loading(outcomes: list[dict[str, Any]]) -> None:
    [mismatch] = outcomes[0]["mismatches"]
    assert "__1_0.distcp" in mismatch
    assert outcomes[0]["mismatches of an intact one"] == []


def test_client_state_comes_back(outcomes: list[dict[str, Any]]) -> None:
    assert outcomes[0]["client state back"] is True


def test_asynchronous_save_stores_state_of_the_call(outcomes: list[dict[str, Any]]) -> None:
    for rank in outcomes:
        assert rank["async returned early"]
        assert rank["async saved"]


def test_only_newest_and_latest_checkpoints_are_kept(outcomes: list[dict[str, Any]]) -> None:
    assert outcomes[0]["retained"] == ["global_step1", "global_step3", "global_step4"]
    assert outcomes[0]["retained files"] == [*outcomes[0]["retained"], "latest"]


def test_excluded_frozen_parameters_are_not_required(outcomes: list[dict[str, Any]]) -> None:
    assert outcomes[0]["without frozen"] == ""


def test_incomplete_checkpoint_is_never_visible(tmp_path: Path) -> None:
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
