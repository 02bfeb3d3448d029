"""Launch files of the kinds that people write, with the facts that follow from each.

``tests/oracle/launch``: one case a line, with the text of its files. The facts were derived from
the source of each program at the release of the case, not from our output.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dsconfig.facts import launch_files

FOLDER = Path(__file__).parents[1] / "oracle/launch"
CASES: list[dict[str, Any]] = [
    json.loads(line)
    for file in sorted(FOLDER.glob("*.jsonl"))
    for line in file.read_text("utf-8").splitlines()
]
SAME = {"DeepSpeedCPUAdam": "adamw", "FusedAdam": "adamw", "adamw_torch_fused": "adamw_torch"}
"""Optimizers that a newer PyTorch or a ds_config replaces, with the same states."""


def comparable(name: str, value: Any) -> Any:
    if name == "attention":
        return "flash" if "flash" in str(value) else value
    return SAME.get(value, value) if name == "optimizer" else value


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_facts_of_launch_files(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in case["files"].items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    package, _, release = case["with"].partition("==")
    launch = launch_files.launch_in(case["entry"], {package: release} if release else {})
    assert launch is not None
    wanted = {name: comparable(name, value) for name, value in case["facts"].items()}
    assert {name: comparable(name, launch.value(name)) for name in wanted} == wanted
    assert not os.path.relpath(launch.files[0], tmp_path).startswith("..")
