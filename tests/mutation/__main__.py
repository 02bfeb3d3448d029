"""Mutation testing: a fixed sample of mutants, each run against the tests that cover its line.

    PYTHONPATH=tests python -m mutation record light|engine [TESTS]   record coverage per test
    PYTHONPATH=tests python -m mutation run [--count 200]             continue where it stopped
    PYTHONPATH=tests python -m mutation page [COMMIT]                 write mutants.md

A mutant is killed if a test fails. Style checks and generated pages do not count: they detect that
something changed, not that it is wrong.
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
from mutation.trial import Sandbox, copy_of
from narrowing import not_none

ROOT = Path(__file__).parents[2]
STATE = ROOT / "runs" / "mutants"
SEED = 11
PACKAGES = ("schema", "runtimes", "cost", "resolver", "checks", "planner")
ENGINE_FILES = (
    "loop/counters.py", "loop/engine.py", "loop/initialization.py", "loop/planning.py",
    "loop/stepping.py", "observation/progress.py", "optimizers/*.py", "sharding/reduction.py",
    "checkpoints/directory.py",
)  # fmt: skip
"""The engine's loop and what it calls in each step."""
ENGINE_SHARE = 10
"""One in this many mutants is in the engine, whose tests start processes."""


def sources() -> Iterable[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / "dsconfig" / package).rglob("*.py"))
    for name in ENGINE_FILES:
        yield from sorted((ROOT / "engine" / "dsengine").glob(name))


def sample(count: int, seed: int = SEED) -> list[Mutant]:
    """Return ``count`` mutants, the same as long as their lines do not change."""
    compiler: dict[str, Mutant] = {}
    loop: dict[str, Mutant] = {}
    for file in sources():
        path = str(file.relative_to(ROOT))
        target = loop if path.startswith("engine/") else compiler
        target |= {mutant.key: mutant for mutant in mutants(path, file.read_text("utf-8"), seed)}
    engine = count // ENGINE_SHARE
    return [compiler[key] for key in sorted(compiler)[: count - engine]] + [
        loop[key] for key in sorted(loop)[:engine]
    ]


def verdicts() -> dict[str, dict[str, object]]:
    """Return the newest verdict by key."""
    file = STATE / "verdicts.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return {row["key"]: row for row in map(json.loads, lines)}


def run(chosen: list[Mutant], jobs: int, *, quick: bool) -> None:
    known = verdicts()
    waiting = [m for m in chosen if known.get(m.key, {}).get("outcome") != "killed"]
    waiting.sort(key=lambda mutant: mutant.key in known)  # untested mutants first
    recorded = Recorded(ROOT, STATE)
    sandboxes: queue.SimpleQueue[Sandbox] = queue.SimpleQueue()
    for _ in range(jobs):
        sandboxes.put(Sandbox(ROOT, recorded))

    def test(mutant: Mutant) -> None:
        sandbox = sandboxes.get()
        try:
            verdict = sandbox.run(mutant, quick=quick)
        finally:
            sandboxes.put(sandbox)
        if verdict.outcome == "killed" or not quick:
            with (STATE / "verdicts.jsonl").open("a") as file:
                file.write(verdict.to_json() + "\n")
        print(f"{verdict.outcome:9}{verdict.seconds:6.1f} s  {verdict.where}  {verdict.diff}"
              + (f"  by {verdict.by}" if verdict.by else ""), flush=True)  # fmt: skip

    try:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(test, waiting))
    finally:
        while not sandboxes.empty():
            sandboxes.get().close()


def newest_commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=not_none(__doc__).partition("\n")[0])
    parser.add_argument("what", choices=("record", "run", "list", "page"))
    parser.add_argument("more", nargs="*")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--quick", action="store_true", help="run the first tests only")
    parser.add_argument("--at", help="only mutants of files whose path contains this")
    args = parser.parse_args()
    STATE.mkdir(parents=True, exist_ok=True)
    if args.what == "record":
        suite, *only = args.more
        tree = copy_of(ROOT)
        named = "-".join([suite, *(Path(path).stem for path in only)])[:100]
        record(tree, STATE / named, suite, *only)
        shutil.rmtree(tree)
        return
    chosen = [m for m in sample(args.count, args.seed) if (args.at or "") in m.where]
    if args.what == "run":
        run(chosen, args.jobs, quick=args.quick)
    elif args.what == "list":
        for mutant in chosen:
            print(f"{mutant.where}  {mutant.kind}: {mutant.diff}")
    else:
        commit = args.more[0] if args.more else newest_commit()
        (ROOT / "docs" / "internals" / "mutants.md").write_text(
            page(chosen, verdicts(), commit), "utf-8"
        )


if __name__ == "__main__":
    sys.exit(main())
