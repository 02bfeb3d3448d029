"""Replay an oracle through the public API: ``python tests/replay.py NAME PATH``.

Prints one line per failing case (case, expected, got), then ``agree N of M``.
Each oracle has a module in ``replays/`` with ``replay(path) -> Iterable[Case]``.
"""

import sys
from importlib import import_module
from pathlib import Path

from replays import Case

REPLAYS = Path(__file__).parent / "replays"


def names() -> list[str]:
    return sorted(path.stem for path in REPLAYS.glob("[a-z]*.py"))


def run(name: str, path: Path) -> tuple[list[Case], int]:
    """Return the failing cases and the total count."""
    cases = list(import_module(f"replays.{name}").replay(path))
    return [case for case in cases if not case.agrees], len(cases)


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] not in names():
        usage = f"usage: python tests/replay.py NAME PATH\nNAME: {', '.join(names())}"
        print(usage, file=sys.stderr)
        return 2
    wrong, total = run(sys.argv[1], Path(sys.argv[2]))
    for case in wrong:
        print(f"{case.name}: expected {case.expected}; got {case.got}")
    print(f"agree {total - len(wrong)} of {total}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
