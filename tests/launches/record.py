"""Record what the installed transformers and accelerate do with random project folders.

    PYTHONPATH=tests python -m launches.record [COUNT [SEED]]

writes tests/oracle/launches.jsonl; with another seed, it prints rows instead.
"""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from launches.cases import launches

FILE = Path(__file__).parents[1] / "oracle" / "launches.jsonl"
COUNT, SEED = 150, 1
PROGRAMS = ("deepspeed", "transformers", "accelerate")


def rows(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield each case with its outcome."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    from launches.live import outcome

    for case in launches(count, seed):
        with tempfile.TemporaryDirectory() as folder:
            yield {**case.as_row(), "outcome": outcome(case, Path(folder))}


def main() -> None:
    numbers = [int(argument) for argument in sys.argv[1:]]
    count, seed = (*numbers, *(COUNT, SEED)[len(numbers) :])
    installed = {name: version(name) for name in PROGRAMS}
    with FILE.open("w") if seed == SEED else contextlib.nullcontext(sys.stdout) as out:
        for row in rows(count, seed):
            print(json.dumps({**row, "oracle": installed}), file=out, flush=True)


if __name__ == "__main__":
    main()
