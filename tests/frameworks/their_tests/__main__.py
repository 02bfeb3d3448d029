"""The frameworks' own tests of DeepSpeed, on dsengine and on the real one, from checkouts of them.

python -m frameworks.their_tests run accelerate CHECKOUT [PYTEST'S OPTIONS]
python -m frameworks.their_tests run transformers CHECKOUT [PYTEST'S OPTIONS]
python -m frameworks.their_tests page

``run`` puts each test to both packages and goes on where it was stopped; what it has found is in
runs/their-tests. The tests need ``parameterized`` and ``datasets``, which PYTHONPATH may lead to.
"""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import wrap

from deepspeed_tests.outcomes import Outcome, read
from kernels import build_adams

ROOT = Path(__file__).parents[3]
RUNS = Path(os.environ.get("THEIR_TESTS_RUNS", ROOT / "runs" / "their-tests"))
PAGE = ROOT / "docs" / "internals" / "framework-tests.md"
PACKAGES = ("dsengine", "deepspeed")
SUITES = {
    "accelerate": ("tests/deepspeed",),
    "transformers": (
        "tests/trainer/distributed/test_trainer_distributed_deepspeed.py",
        # The other classes start more processes than one, or are slow.
        "-k=TestTrainerIntegrationDeepSpeed or TestNonTrainerIntegrationDeepSpeed",
    ),
}
"""By framework, which of its tests are about DeepSpeed, as pytest is told."""

CHECKPOINTS = {"accelerate": "dsengine", "transformers": "deepspeed"}
"""Whose files dsengine saves: tests of transformers look for DeepSpeed's."""


def told_of(framework: str, package: str) -> Path:
    """The file that holds what came of a framework's tests on a package."""
    return RUNS / f"{framework}-{package}.jsonl"


def run(framework: str, checkout: Path, package: str, *options: str) -> None:
    RUNS.mkdir(parents=True, exist_ok=True)
    ours = [ROOT, ROOT / "engine", ROOT / "tests"]
    paths = [checkout, *ours, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PATH": os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)]),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_CACHE": str(RUNS / "hub"),
        "DSENGINE_CHECKPOINTS": CHECKPOINTS[framework],
        "TORCH_EXTENSIONS_DIR": str(build_adams()),
        "DEEPSPEED_TESTS": package,
        "DEEPSPEED_TESTS_TOLD": str(told_of(framework, package)),
    }
    hub = [sys.executable, "-m", "frameworks.their_tests.hub", str(RUNS / "hub")]
    subprocess.run(hub, env=environment, check=True)
    plugin = ("-p", "frameworks.their_tests.plugin", "-p", "no:cacheprovider")
    usual = ("-q", "-o", "addopts=", "-W", "ignore", "--continue-on-collection-errors")
    command = [sys.executable, "-m", "pytest", *plugin, *usual, *SUITES[framework], *options]
    subprocess.run(command, cwd=checkout, env=environment)


def lost(framework: str) -> dict[str, Outcome]:
    """Tests that pass with DeepSpeed and not with dsengine, with what came of them there."""
    mine, theirs = (read(told_of(framework, each)) for each in PACKAGES)
    return {
        name: mine.get(name, Outcome("failed", "not run"))
        for name, outcome in theirs.items()
        if outcome.kind == "passed" and (name not in mine or mine[name].kind != "passed")
    }


def page(frameworks: list[str], before: str = "") -> str:
    """The page of those that were run; of the others it has what it had ``before``."""
    kept = {each: found for each in SUITES if (found := _section(before, each))}
    lines = [
        "# The frameworks' own tests of DeepSpeed",
        "",
        *wrap(
            "accelerate's tests/deepspeed and the one-process part of transformers' "
            "test_trainer_distributed_deepspeed, from checkouts of their repositories, on a CPU "
            "with tiny models in the place of the hub's, with dsengine as their deepspeed and "
            "with DeepSpeed 0.19.8. For transformers' tests, some of which look for them, dsengine "
            "saves DeepSpeed's files (DSENGINE_CHECKPOINTS=deepspeed): with its own 60 pass. Their "
            "file of tests is a transcript of that of commit 0a5ecfb6, shortened by comments, "
            "messages and imports that no test needs. DeepSpeed is helped where it broadcasts "
            "parameters without a dimension as bytes, which fails: without that it passes 21 of "
            "transformers' tests and 26 of accelerate's. Made in tests/ by `python -m "
            "frameworks.their_tests`; no test of theirs is here. Skipped are those that are slow "
            "by their mark or ask for more than one accelerator.",
            100,
        ),
        "",
        "| tests of | DeepSpeed passes | dsengine passes | of |",
        "|---|---|---|---|",
    ]
    for framework in SUITES:
        if framework in frameworks:
            mine, theirs = (_passed(framework, package) for package in PACKAGES)
            count = len(read(told_of(framework, "deepspeed")))
            lines.append(f"| {framework} | {theirs} | {mine} | {count} |")
        elif framework in kept:
            lines += [line for line in before.splitlines() if line.startswith(f"| {framework} |")]
    for framework in SUITES:
        lines += ["", f"## {framework}", ""]
        if framework in frameworks:
            lines += ["| test | dsengine | DeepSpeed | why |", "|---|---|---|---|"]
            lines += _rows(framework)
        elif framework in kept:
            lines += kept[framework]
        else:
            run = f"python -m frameworks.their_tests run {framework} CHECKOUT"
            lines += wrap(
                f"Not run. Where there is a checkout: `{run}` in tests/, then `page`.", 100
            )
    return "\n".join(lines) + "\n"


def _section(text: str, framework: str) -> list[str]:
    """The lines of a framework's table in ``text``, if it has one."""
    _, _, rest = text.partition(f"\n## {framework}\n")
    return [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]


def _rows(framework: str) -> list[str]:
    mine, theirs = (read(told_of(framework, package)) for package in PACKAGES)
    absent = Outcome("not run", "")
    rows: list[str] = []
    for name in sorted(mine | theirs):
        here, there = mine.get(name, absent), theirs.get(name, absent)
        whys = {each.why: None for each in (here, there) if each.kind != "passed" and each.why}
        row = f"| {name} | {here.kind} | {there.kind} | {'; '.join(whys).replace('|', ' ')} |"
        rows.append(row.replace("<", "\\<"))
    return rows


def _passed(framework: str, package: str) -> int:
    return sum(each.kind == "passed" for each in read(told_of(framework, package)).values())


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", framework, checkout, *options] if framework in SUITES:
            for package in PACKAGES:
                run(framework, Path(checkout).resolve(), package, *options)
        case ["page"]:
            run_already = [each for each in SUITES if told_of(each, "dsengine").exists()]
            PAGE.write_text(page(run_already, PAGE.read_text("utf-8")), "utf-8")
        case _:
            raise SystemExit(__doc__)
