"""Records of measurements: one file per part, valid for one commit and GPU."""

import json
import subprocess
from collections.abc import Callable
from datetime import date
from pathlib import Path
from time import monotonic
from typing import Any

from gpu.cases import Row
from gpu.setting import Setting

Part = Callable[[Setting, float], list[Row]]


def measure(part: Part, setting: Setting, seconds: float, folder: Path, commit: str) -> bool:
    """Run a part and store its rows, unless a valid record exists; return whether it ran."""
    target = folder / f"{part.__name__}.json"
    ours = {"commit": commit, "gpu": setting.gpu, "gpus": setting.gpus}
    if target.exists() and ours.items() <= json.loads(target.read_text()).items():
        return False
    began = monotonic()
    rows = part(setting, seconds)
    took = {"seconds": round(monotonic() - began), "date": str(date.today())}
    folder.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({**ours, **took, "rows": rows}, indent=1))
    return True


def read(folder: Path) -> dict[str, Any]:
    """Return the records by part."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def commit_of(tree: Path) -> str:
    """Return the tree's commit, marked if there are changes."""
    output = subprocess.run(
        ["git", "describe", "--always", "--abbrev=12", "--dirty"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=True,
    )
    return output.stdout.strip()
