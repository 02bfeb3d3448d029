"""What the README shows is what the commands print, line by line (some lines are left out)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = """{
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {
        "enabled": "auto"
    },
    "gradient_clipping": 1.0,
    "zero_optimization": {
        "stage": 3,
        "stage3_gather_16bit_weights_on_model_save": true,
        "overlap_com": true
    }
}
"""
TOUR = re.findall(
    r"^    \$ dsconfig ((?:validate|resolve|estimate) .*)\n((?:    .*\n)+)",
    (ROOT / "README.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


@pytest.mark.parametrize(("command", "shown"), TOUR, ids=[command for command, _ in TOUR])
def test_the_tour_shows_real_output(command: str, shown: str, tmp_path: Path) -> None:
    mended = CONFIG if "validate" in command else CONFIG.replace("overlap_com", "overlap_comm")
    (tmp_path / "ds.json").write_text(mended)
    model = (ROOT / "examples" / "gpt.json").read_text(encoding="utf-8")
    (tmp_path / "gpt.json").write_text(model)
    printed = [line for width in (100, 200) for line in lines_of(command, tmp_path, width)]
    for line in shown.splitlines():
        assert any(each.startswith(line[4:]) for each in printed), line


def lines_of(command: str, folder: Path, width: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "dsconfig", *command.split()],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": str(width), "NO_COLOR": "1"},
        timeout=60,
        check=False,
    )
    return done.stdout.splitlines()


def test_there_is_a_tour() -> None:
    assert len(TOUR) == 4
