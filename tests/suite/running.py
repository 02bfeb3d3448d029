"""Run the parts of ``make test`` and the slices of ``make test-all``."""

import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

import kernels
from suite.lint import lint
from suite.parts import ROOT, TEST, Part, slice_parts
from suite.results import Result, table

RUNS = ROOT / "runs" / "test"
SETUP = ROOT / ".stamps" / "setup"
HASHED = ("dsconfig", "engine", "tests", "schemas", "examples", "website")
HASHED_FILES = ("cli.py", "constraints.txt", "pyproject.toml")
"""What a recorded slice depends on. Pages and benchmarks are not among it."""


def test(names: list[str]) -> int:
    """Run these parts, by default all of them; return the worst exit status."""
    runs: dict[str, Callable[[], Result]] = {"lint": lint}
    runs |= {part.name: lambda part=part: run_part(part) for part in TEST}
    results = [_setup()]
    with _until_interrupted(results):
        for name in names or list(runs):
            print(f"\n== {name}", flush=True)
            results.append(runs[name]())
    code = _summarize(results)
    if code == 0 and not names:
        _record_passed_tree()
    return code


def test_all(names: list[str]) -> int:
    """Run the slices that have not passed with the current files, or these; return the status."""
    state = state_hash()
    results = [_kernels()]
    with _until_interrupted(results):
        for part in slice_parts():
            record = RUNS / "slices" / f"{part.name}-{state[:16]}.json"
            if names and part.name not in names:
                continue
            if record.exists() and not names:
                results.append(Result.read(record))
                continue
            print(f"\n== {part.name}", flush=True)
            results.append(result := run_part(part))
            if result.code == 0:
                result.write(record)
    return _summarize(results)


def run_part(part: Part) -> Result:
    """Run pytest in a process of its own."""
    report = RUNS / f"{part.name}.json"
    report.unlink(missing_ok=True)
    report.parent.mkdir(parents=True, exist_ok=True)
    environment = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "pytest", f"--report={report}", *part.arguments()]
    began = monotonic()
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        code = process.wait()  # after Ctrl-C, pytest prints its summary before it ends
    seconds = monotonic() - began
    if not report.exists():
        return Result(part.name, seconds, code or 1, failures=["pytest ended without a report"])
    result = Result.read(report)
    result.name, result.seconds, result.code = part.name, seconds, code
    return result


def state_hash() -> str:
    """Return a hash of the product, the tests and the constraints in the working tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *HASHED],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    digest = hashlib.sha256()
    for name in sorted({*listed.split("\0"), *HASHED_FILES} - {""}):
        path = ROOT / name
        if path.is_file():
            digest.update(f"{name}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


@contextmanager
def _until_interrupted(results: list[Result]) -> Iterator[None]:
    """End the block at Ctrl-C with a result of its own, so that the table is still printed."""
    try:
        yield
    except KeyboardInterrupt:
        results.append(Result("interrupted", 0.0, code=130))


def _setup() -> Result:
    """Return a row with the seconds that installing the environment took."""
    taken = SETUP.read_text().strip() if SETUP.exists() else ""
    return Result("set-up", float(taken or 0))


def _kernels() -> Result:
    """Return a row with the seconds that building DeepSpeed's kernels took.

    Built before the tests: time limits of tests do not cover the minutes of the first time.
    """
    began = monotonic()
    failures: list[str] = []
    if importlib.util.find_spec("deepspeed") is not None:
        try:
            kernels.build()
        except subprocess.CalledProcessError as error:
            failures.append(error.stderr.decode("utf-8", "replace").strip()[-2000:])
    return Result("kernels", monotonic() - began, code=int(bool(failures)), failures=failures)


def _summarize(results: list[Result]) -> int:
    """Print the table, and the sums on a line that other programs can read."""
    passed, failed, skipped = (
        sum(getattr(result, kind) for result in results) for kind in ("passed", "failed", "skipped")
    )
    print(f"\n{table(results)}\n\n{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return max((result.code for result in results), default=0)


def _record_passed_tree() -> None:
    """Write the hash of the tested tree, if it equals the commit."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else "unknown"

    if git("status", "--porcelain") == "":
        (RUNS / "passed").write_text(git("rev-parse", "HEAD^{tree}") + "\n")
