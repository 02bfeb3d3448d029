"""Comparing the results of dsengine with those of DeepSpeed, and the table of a page."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

PACKAGES = ("deepspeed", "dsengine")
"""DeepSpeed first, because dsengine resumes from its checkpoints in some runs."""
CLOSE = {"fp32": 1e-5, "bf16": 5e-3, "fp16": 5e-3}
"""Relative to the largest value of a list."""
Row = dict[str, Any]
"""The difference of each result by name; "failed" or "skipped" gives a reason instead."""


@dataclass(frozen=True, slots=True)
class Records:
    """Rows by the name of their run, in a JSON file."""

    path: Path

    def read(self) -> dict[str, Row]:
        return json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}

    def write(self, rows: Mapping[str, Row]) -> None:
        self.path.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


def difference(ours: Any, theirs: Any, at_least: float = 0.0) -> float | bool:
    """Return the difference relative to the largest of ``theirs``; whether equal if not numbers.

    ``at_least``: the smallest number to be relative to.
    """
    own, others = _numbers(ours), _numbers(theirs)
    if own is None or others is None or len(own) != len(others):
        return bool(ours == theirs)
    scale = max(*map(abs, others), at_least, 0.0)
    largest = max((abs(a - b) for a, b in zip(own, others, strict=True)), default=0.0)
    return largest / scale if scale else largest


def _numbers(value: Any) -> list[float] | None:
    """Return floats as a list; None for names, counts and tokens."""
    if isinstance(value, dict):
        return _numbers([value[name] for name in sorted(value)])
    flat = value if isinstance(value, list) else [value]
    return flat if all(isinstance(number, float) for number in flat) else None


def differing(row: Mapping[str, Any], precision: str) -> list[str]:
    """Return the names of results that differ, among them "failed" and "skipped"."""
    close = CLOSE[precision]
    return [
        name
        for name, apart in row.items()
        if isinstance(apart, str) or apart is False or (apart is not True and not apart <= close)
    ]


def shown(apart: Any) -> str:
    """Return a difference as the text of a cell."""
    if apart is None:
        return ""
    if isinstance(apart, bool):
        return "same" if apart else "different"
    return f"{apart:.0e}" if apart else "0"


def largest_other(row: Mapping[str, Any], columns: Sequence[str]) -> float | None:
    """Return the largest difference of the numbers without a column."""
    others = [apart for name, apart in row.items() if name not in columns]
    return max((x for x in others if isinstance(x, float)), default=None)


def cells(row: Mapping[str, Any], precision: str, columns: Sequence[str], numbers: int) -> str:
    """Return the cells of a row: its columns, the other numbers after ``numbers``, the verdict."""
    found = [shown(row.get(name)) for name in columns]
    found.insert(numbers, shown(largest_other(row, columns)))
    reason = row.get("failed") or (f"skipped: {row['skipped']}" if "skipped" in row else "")
    found.append(reason or ", ".join(differing(row, precision)) or "agrees")
    return " | ".join(cell.replace("|", "\\|") for cell in found)


def page(title: str, text: str, verdict: str, head: Sequence[str], rows: Sequence[str]) -> str:
    """Return a page with one table."""
    lines = [f"# {title}", "", *wrap(text, 100), "", verdict, ""]
    names = "".join(f"| {name} " if name else "| " for name in head)
    lines += [f"{names}|", "|---" * len(head) + "|", *(f"| {row} |" for row in rows)]
    return "\n".join(lines) + "\n"
