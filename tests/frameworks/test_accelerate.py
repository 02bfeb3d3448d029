"""accelerate with dsengine in the place of DeepSpeed, held to the real one (one rank)."""

from pathlib import Path
from typing import Any

import pytest

from frameworks.running import tiny_model, told

pytestmark = [pytest.mark.live, pytest.mark.engine]


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("way", ["fields", "file"])
@pytest.mark.parametrize("stage", [2, 3])
def test_a_loop_trains_saves_and_goes_on(
    tmp_path: Path, stage: int, way: str, precision: str
) -> None:
    model = str(tiny_model(tmp_path))
    how = (f"--stage={stage}", f"--way={way}", f"--precision={precision}")

    def run(package: str) -> dict[str, Any]:
        return told(package, "accelerated", tmp_path, model, str(tmp_path / package), *how)

    mine, theirs = run("dsengine"), run("deepspeed")
    close, norms = (1e-5, 1e-5) if precision == "no" else (5e-3, 3e-2)
    for name in ("losses", "again", "rate"):
        assert mine[name] == pytest.approx(theirs[name], rel=close), name
    assert mine["norms"] == pytest.approx(theirs["norms"], rel=norms)
    assert mine["weights"] == pytest.approx(theirs["weights"], rel=close, abs=0.05)
    assert mine["class"] == theirs["class"] == "LlamaForCausalLM" and mine["resumed"]
