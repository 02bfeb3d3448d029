"""Findings of validation are not repeated by the resolver."""

import json
from pathlib import Path

import pytest

from schema.conftest import Run, run

__all__ = ["run"]
AUTO = {
    "train_batch_size": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
}


@pytest.mark.parametrize("stops", [True, False])
def test_each_auto_is_reported_once(stops: bool, run: Run, tmp_path: Path) -> None:
    config = AUTO if stops else AUTO | {"train_batch_size": 2, "gradient_clipping": 1.0}
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(config))
    flags = ("--runtime", "deepspeed", "--params", "1e9", "--gpus", "2")
    _, out, _ = run("estimate", path, *flags)
    places = [line for line in out.splitlines() if line.lstrip().startswith("--> ")]
    assert places and len(places) == len(set(places)), out
