"""Results of parts, and the table that a run ends with."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self


@dataclass
class Result:
    """Counts and names of the tests of one part."""

    name: str
    seconds: float
    code: int = 0
    """Exit status: 0, or that of the program that failed."""
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)
    unstable: list[str] = field(default_factory=list)
    """Tests that passed or failed only after they had been repeated."""

    @classmethod
    def read(cls, file: Path) -> Self:
        return cls(**json.loads(file.read_text("utf-8")))

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self), indent=1), "utf-8")


def table(results: Iterable[Result]) -> str:
    """Return failures, unstable tests, and a line per part, as plain text."""
    listed = list(results)
    lines = [f"FAILED    {result.name}: {name}" for result in listed for name in result.failures]
    lines += [f"UNSTABLE  {result.name}: {name}" for result in listed for name in result.unstable]
    width = max(len(result.name) for result in listed)
    lines += ["", f"{'part':{width}}  passed  failed  skipped  unstable  seconds  status"]
    lines += [
        f"{result.name:{width}}  {result.passed:6}  {result.failed:6}  {result.skipped:7}"
        f"  {len(result.unstable):8}  {result.seconds:7.0f}  "
        + (f"failed ({result.code})" if result.code else "ok")
        for result in listed
    ]
    return "\n".join(lines)
