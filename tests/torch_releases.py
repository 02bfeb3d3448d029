"""The table of tested torch releases in docs/internals/torch-releases.md.

python -m tests.torch_releases runs/torch/2.15.0.xml 2.15.0
"""

import sys
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

PAGE = Path(__file__).parents[1] / "docs" / "internals" / "torch-releases.md"


def row(report: Path, version: str) -> str:
    """Return a row of the table from pytest's JUnit XML report."""
    suite = next(ElementTree.parse(report).iter("testsuite"))
    tests, skipped = int(suite.attrib["tests"]), int(suite.attrib["skipped"])
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    passed = tests - skipped - failed
    return f"| {version} | {passed} | {failed} | {skipped} | {date.today()} |"


def with_row(page: str, line: str) -> str:
    """Return the page with ``line`` inserted by release, oldest first."""
    lines = page.splitlines()
    first = next(i for i, text in enumerate(lines) if text.startswith("| ---")) + 1
    last = next((i for i in range(first, len(lines)) if not lines[i].startswith("|")), len(lines))
    rows = {_release(row): row for row in [*lines[first:last], line]}
    return "\n".join([*lines[:first], *(rows[key] for key in sorted(rows)), *lines[last:], ""])


def _release(line: str) -> tuple[int, ...]:
    return tuple(int(part) for part in line.split("|")[1].strip().split("+")[0].split("."))


if __name__ == "__main__":
    report, version = Path(sys.argv[1]), sys.argv[2]
    PAGE.write_text(with_row(PAGE.read_text("utf-8"), row(report, version)), "utf-8")
