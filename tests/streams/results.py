"""Results of the cases on a simulated GPU, kept until the engine or the simulation changes.

PYTHONPATH=tests python -m streams.results      # a table of what has passed
"""

import hashlib
import json
from collections import Counter
from functools import cache
from pathlib import Path

from streams.cases import every_case

ROOT = Path(__file__).parents[2]
FILE = ROOT / "runs" / "streams.jsonl"
SOURCES = ("engine/dsengine/**/*.py", "tests/streams/*.py", "tests/training/models.py")


@cache
def digest() -> str:
    """Return a digest of everything that decides a result, apart from torch."""
    files = {path for pattern in SOURCES for path in ROOT.glob(pattern)} - {Path(__file__)}
    content = b"".join(path.read_bytes() for path in sorted(files))
    return hashlib.sha256(content).hexdigest()[:16]


def passed() -> set[str]:
    """Return the names of the cases that have passed with these sources."""
    lines = FILE.read_text().splitlines() if FILE.exists() else []
    results = map(json.loads, lines)
    return {result["case"] for result in results if result["sources"] == digest()}


def record(case: str) -> None:
    """Record that a case has passed."""
    FILE.parent.mkdir(exist_ok=True)
    with FILE.open("a") as file:
        file.write(json.dumps({"case": case, "sources": digest()}) + "\n")


def table() -> list[str]:
    """Return cases that have passed, and all cases, by stage and mesh."""
    done, total, found = passed(), Counter[str](), Counter[str]()
    for name, _ in every_case():
        stage, _, _, mesh, _ = name.split(", ")
        total[row := f"{stage} | {mesh}"] += 1
        found[row] += name in done
    rows = [f"| {row} | {found[row]} of {total[row]} |" for row in total]
    return ["| stage | ranks | cases without a race |", "|---|---|---|", *rows]


if __name__ == "__main__":
    print("\n".join(table()))
