"""`keep` removes this directory's own old checkpoints, and nothing that a link points to."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

from dsengine.checkpoints import Checkpointer, TrainingState
from dsengine.checkpoints.choice import checkpoints, retain
from dsengine.checkpoints.directory import LATEST, MANIFEST, discard, remove_tag


def save(root: Path, step: int, tag: str | None = None, *, save_latest: bool = True) -> Path:
    state = TrainingState(module=nn.Linear(2, 2), description={"global_steps": step})
    return Checkpointer().save(state, root, tag or f"step{step}", save_latest=save_latest)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.is_dir())


@pytest.mark.parametrize("step", [0, 9], ids=["oldest", "newest"])
def test_link_to_a_checkpoint_outside_is_neither_counted_nor_emptied(
    tmp_path: Path, step: int
) -> None:
    best = save(tmp_path, step, "best")
    saved = content(best)
    root = tmp_path / "ck"
    root.mkdir()
    (root / "best").symlink_to("../best")
    for number in range(1, 5):
        save(root, number)
    retain(root, 2)
    assert content(best) == saved
    assert (root / "best").is_symlink()
    assert names(root) == ["best", "step3", "step4"]


def test_link_to_a_checkpoint_beside_it_is_not_counted(tmp_path: Path) -> None:
    for number in range(1, 4):
        save(tmp_path, number)
    (tmp_path / "best").symlink_to("step3")
    assert checkpoints(tmp_path) == ["step1", "step2", "step3"]
    retain(tmp_path, 3)
    assert names(tmp_path) == ["best", "step1", "step2", "step3"]


def test_checkpoint_that_latest_names_through_a_link_is_kept(tmp_path: Path) -> None:
    for number in range(1, 5):
        save(tmp_path, number, save_latest=False)
    (tmp_path / "chosen").symlink_to("step1")
    (tmp_path / LATEST).write_text("chosen")
    retain(tmp_path, 1)
    assert names(tmp_path) == ["chosen", "step1", "step4"]


def test_folder_with_a_linked_manifest_is_not_a_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 5)
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "thesis.txt").write_text("only copy")
    (notes / MANIFEST).symlink_to(f"../step5/{MANIFEST}")
    retain(tmp_path, 1)
    assert (notes / "thesis.txt").read_text() == "only copy"


def test_links_inside_a_removed_checkpoint_are_only_unlinked(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    (data / "deep" / "x").write_text("only copy")
    root = tmp_path / "ck"
    old = save(root, 1)
    (old / "data").symlink_to(data)
    (old / "file").symlink_to(data / "deep" / "x")
    (old / "own").mkdir()
    (old / "own" / "data").symlink_to(data)
    save(root, 2)
    retain(root, 1)
    assert names(root) == ["step2"]
    assert (data / "deep" / "x").read_text() == "only copy"


@pytest.mark.parametrize("exists", [True, False], ids=["", "dangling"])
def test_save_under_the_name_of_a_link_replaces_the_link(tmp_path: Path, exists: bool) -> None:
    best = tmp_path / "best"
    root = tmp_path / "ck"
    root.mkdir()
    (root / "step3").symlink_to("../best")
    saved = content(save(tmp_path, 1, "best")) if exists else None
    final = save(root, 3)
    assert not final.is_symlink() and (final / MANIFEST).is_file()
    assert names(root) == ["step3"]
    assert (content(best) if exists else None) == saved


@pytest.mark.parametrize("remove", [discard, lambda path: remove_tag(path.parent, path.name)])
def test_removal_of_a_link_removes_only_the_link(
    tmp_path: Path, remove: Callable[[Path], None]
) -> None:
    """Another process may replace a checkpoint with a link after it was chosen."""
    best = save(tmp_path, 1, "best")
    saved = content(best)
    link = tmp_path / "link"
    link.symlink_to(best)
    remove(link)
    assert not os.path.lexists(link)
    assert content(best) == saved


@pytest.mark.parametrize("description", [[], None, {"global_steps": "7"}, {"global_steps": None}])
def test_manifest_without_a_step_counts_as_oldest(tmp_path: Path, description: object) -> None:
    path = save(tmp_path, 1) / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"description": description}))
    save(tmp_path, 0)
    assert checkpoints(tmp_path) == ["step1", "step0"]
