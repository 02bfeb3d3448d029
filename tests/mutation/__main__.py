"""Would the suite notice? A fixed sample of small mistakes, each put to the tests that run it.

    PYTHONPATH=tests python -m mutation record light|engine [TESTS]   who runs which line
    PYTHONPATH=tests python -m mutation run [--count 200]             goes on where it stopped
    PYTHONPATH=tests python -m mutation page [COMMIT]                 writes mutants.md

A mutant is killed when a test fails. Style checks and pages that are written from the sources do
not count: they see that something changed, not that it is wrong.
"""

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mutation.page import page
from mutation.recording import Recorded, record
from mutation.sites import Mutant, mutants
from mutation.trial import Court, copy_of

ROOT = Path(__file__).parents[2]
STATE = ROOT / "runs" / "mutants"
SEED = 11
ROOMS = ("schema", "runtimes", "cost", "resolver", "checks", "planner")
LOOP = (
    "loop/counters.py", "loop/engine.py", "loop/initialization.py", "loop/planning.py",
    "loop/stepping.py", "observation/progress.py", "optimizers/*.py", "sharding/reduction.py",
    "checkpoints/directory.py",
)  # fmt: skip
"""The engine's loop, and what it calls once a step."""
SHARE_OF_LOOP = 10
"""One mutant in so many is the loop's, whose witnesses start processes."""


def sources() -> Iterable[Path]:
    for room in ROOMS:
        yield from sorted((ROOT / "dsconfig" / room).rglob("*.py"))
    for name in LOOP:
        yield from sorted((ROOT / "engine" / "dsengine").glob(name))


def sample(count: int, seed: int = SEED) -> list[Mutant]:
    """``count`` mutants, the same while the lines they change stay."""
    compiler: dict[str, Mutant] = {}
    loop: dict[str, Mutant] = {}
    for file in sources():
        path = str(file.relative_to(ROOT))
        found = loop if path.startswith("engine/") else compiler
        found |= {mutant.key: mutant for mutant in mutants(path, file.read_text("utf-8"), seed)}
    engine = count // SHARE_OF_LOOP
    return [compiler[key] for key in sorted(compiler)[: count - engine]] + [
        loop[key] for key in sorted(loop)[:engine]
    ]


def verdicts() -> dict[str, dict[str, object]]:
    """By key, the newest."""
    file = STATE / "verdicts.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return {row["key"]: row for row in map(json.loads, lines)}


def run(chosen: list[Mutant], jobs: int, *, quick: bool) -> None:
    known = verdicts()
    waiting = [m for m in chosen if known.get(m.key, {}).get("outcome") != "killed"]
    waiting.sort(key=lambda mutant: mutant.key in known)  # who was never tried comes first
    recorded = Recorded(ROOT, STATE)
    courts: queue.SimpleQueue[Court] = queue.SimpleQueue()
    for _ in range(jobs):
        courts.put(Court(ROOT, recorded))

    def judge(mutant: Mutant) -> None:
        court = courts.get()
        try:
            verdict = court.judge(mutant, quick=quick)
        finally:
            courts.put(court)
        if verdict.outcome == "killed" or not quick:
            with (STATE / "verdicts.jsonl").open("a") as file:
                file.write(verdict.to_json() + "\n")
        print(f"{verdict.outcome:9}{verdict.seconds:6.1f} s  {verdict.where}  {verdict.diff}"
              + (f"  by {verdict.by}" if verdict.by else ""), flush=True)  # fmt: skip

    try:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(judge, waiting))
    finally:
        while not courts.empty():
            courts.get().close()


def newest_commit() -> str:
    asked = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(
        asked, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("record", "run", "list", "page"))
    parser.add_argument("more", nargs="*")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--quick", action="store_true", help="hear the first witnesses only")
    parser.add_argument("--at", help="only mutants of files whose path holds this")
    given = parser.parse_args()
    STATE.mkdir(parents=True, exist_ok=True)
    if given.what == "record":
        suite, *only = given.more
        tree = copy_of(ROOT)
        named = "-".join([suite, *(Path(each).stem for each in only)])[:100]
        record(tree, STATE / named, suite, *only)
        shutil.rmtree(tree)
        return
    chosen = [m for m in sample(given.count, given.seed) if (given.at or "") in m.where]
    if given.what == "run":
        run(chosen, given.jobs, quick=given.quick)
    elif given.what == "list":
        for mutant in chosen:
            print(f"{mutant.where}  {mutant.kind}: {mutant.diff}")
    else:
        commit = given.more[0] if given.more else newest_commit()
        (ROOT / "docs" / "internals" / "mutants.md").write_text(
            page(chosen, verdicts(), commit), "utf-8"
        )


if __name__ == "__main__":
    sys.exit(main())
