"""What is generated is as the declarations and rules have it: ``make generate``."""

import shutil
from pathlib import Path

import pytest

from dsconfig import generate


def test_nothing_generated_is_stale() -> None:
    assert generate.stale() == []


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of the generated files alone."""
    for name in generate.texts():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(generate.ROOT / name, tmp_path / name)
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    return tmp_path


def test_a_stale_a_missing_and_a_left_over_file_are_named_and_mended(copied: Path) -> None:
    (copied / "docs/reference/keys.md").write_text("old")
    (copied / "schemas/ds_config.schema.json").unlink()
    (copied / "docs/reference/rules/DSC999.md").write_text("a rule that is gone")
    named = ["docs/reference/keys.md", "docs/reference/rules/DSC999.md"]
    named += ["schemas/ds_config.schema.json"]
    assert generate.stale() == named
    generate.main()
    assert generate.stale() == []
