"""Lightning's strategy for DeepSpeed with dsengine in its place, held to the real one."""

from pathlib import Path
from typing import Any

import pytest

from frameworks.running import told

pytestmark = [pytest.mark.live, pytest.mark.engine]
pytest.importorskip("lightning", reason="lightning is not installed")


@pytest.fixture
def trained(tmp_path: Path) -> Any:
    def run(package: str, stage: int, epochs: int, resume: str = "") -> Any:
        folder = str(tmp_path / f"{package}-{epochs}")
        arguments = (folder, str(stage), str(epochs), resume)
        return told(package, "lightning_module", tmp_path, *arguments)

    return run


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_training_is_that_of_deepspeed(trained: Any, stage: int) -> None:
    mine, theirs = trained("dsengine", stage, 2), trained("deepspeed", stage, 2)
    for name in ("losses", "val"):
        assert mine[name] == pytest.approx(theirs[name], rel=1e-5), name
    assert mine["steps"] == theirs["steps"] == 8
    assert Path(mine["saved"]).name == Path(theirs["saved"]).name


@pytest.mark.parametrize("saved_by", ["dsengine", "deepspeed"])
@pytest.mark.parametrize("stage", [2, 3])
def test_a_run_goes_on_from_what_either_has_saved(trained: Any, stage: int, saved_by: str) -> None:
    whole = trained(saved_by, stage, 3)
    half = trained(saved_by, stage, 2)
    rest = trained("dsengine", stage, 3, half["saved"])
    assert rest["losses"] == pytest.approx(whole["losses"][-8:], rel=1e-5)
    assert rest["val"] == pytest.approx(whole["val"], rel=1e-5)
