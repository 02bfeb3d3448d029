"""Outcomes of a sweep that resumes: a JSON line each, with name, kind and reason."""

import json
from pathlib import Path


def read_outcomes(file: Path) -> dict[str, tuple[str, str]]:
    """Return kind and reason by name; nothing before the first run."""
    if not file.exists():
        return {}
    lines = (json.loads(line) for line in file.read_text("utf-8").splitlines())
    return {name: (kind, why) for name, kind, why in lines}


def add_outcome(file: Path, name: str, kind: str, why: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps([name, kind, why]) + "\n")
