"""``make generate`` updates, restores and removes files; lint checks that they are current."""

import shutil
from pathlib import Path

import pytest

from dsconfig import generate


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of only the generated files."""
    for name in generate.texts():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(generate.ROOT / name, tmp_path / name)
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    return tmp_path


def test_stale_missing_and_orphaned_files_are_regenerated(copied: Path) -> None:
    (copied / "docs/reference/keys.md").write_text("old")
    (copied / "schemas/ds_config.schema.json").unlink()
    (copied / "dsconfig/report/rules/DSC999.md").write_text("a removed rule")
    named = ["docs/reference/keys.md", "dsconfig/report/rules/DSC999.md"]
    named += ["schemas/ds_config.schema.json"]
    assert generate.stale() == named
    generate.main()
    assert generate.stale() == []
