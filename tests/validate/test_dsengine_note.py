"""The note on what dsengine rejects follows ``--select``, ``--ignore`` and ``--baseline``."""

import json
from pathlib import Path

import command_line

REJECTS = "dsengine rejects prescale_gradients"


def shown(folder: Path, *words: str) -> str:
    done = command_line.run("validate", "ds.json", *words, cwd=folder)
    return done.stdout + done.stderr


def test_note_follows_the_selection(tmp_path: Path) -> None:
    config = {"train_batch_size": 8, "prescale_gradients": "no"}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    assert REJECTS in shown(tmp_path)
    assert REJECTS in shown(tmp_path, "--select", "DSC0")
    assert REJECTS not in shown(tmp_path, "--select", "DSC8")
    assert REJECTS not in shown(tmp_path, "--ignore", "DSC032")


def test_note_leaves_out_what_the_baseline_contains(tmp_path: Path) -> None:
    config = {"train_batch_size": 8, "prescale_gradients": "no"}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    done = command_line.run("validate", "ds.json", "--output-format", "json", cwd=tmp_path)
    (tmp_path / "base.json").write_text(done.stdout)
    text = shown(tmp_path, "--baseline", "base.json")
    assert "dsengine rejects" not in text and "2 suppressed by the baseline" in text
