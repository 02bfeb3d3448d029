"""Logs of failed and healthy runs in ``tests/oracle/failures``.

Each has the identifying lines of a public thread as the program prints them, anonymised:

    === NAME
    source: URL
    expect: SIGNATURE [line=N] [rank=N]
    consequences: SIGNATURE ...     (if present: all of them)
    cause: TEXT                     (if present: part of the cause; remedy likewise)
    ---
    lines of the log
"""

from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "oracle" / "failures"


class Case(NamedTuple):
    family: str
    name: str
    fields: dict[str, str]
    text: str

    def __str__(self) -> str:
        return f"{self.family}-{self.name}"


def cases() -> list[Case]:
    """Return all logs."""
    return [case for path in sorted(FOLDER.glob("*.txt")) for case in _cases(path)]


def _cases(path: Path) -> list[Case]:
    found: list[Case] = []
    for part in path.read_text("utf-8").split("=== ")[1:]:
        head, _, text = part.partition("\n---\n")
        name, *lines = head.splitlines()
        fields = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
        found.append(Case(path.stem, name, fields, text))
    return found
