"""The frameworks' own tests of DeepSpeed, run from checkouts with dsengine and DeepSpeed.

python -m frameworks.their_tests run accelerate CHECKOUT [PYTEST'S OPTIONS]
python -m frameworks.their_tests run transformers CHECKOUT [PYTEST'S OPTIONS]
python -m frameworks.their_tests page

``run`` runs each test with both packages and resumes an interrupted run; outcomes are in
runs/their-tests. The tests require ``parameterized`` and ``datasets``, for example on PYTHONPATH.
"""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import wrap

import kernels
from deepspeed_tests.outcomes import Outcome, read

ROOT = Path(__file__).parents[3]
RUNS = Path(os.environ.get("THEIR_TESTS_RUNS", ROOT / "runs" / "their-tests"))
PAGE = ROOT / "docs" / "internals" / "framework-tests.md"
PACKAGES = ("dsengine", "deepspeed")
SUITES = {
    "accelerate": ("tests/deepspeed",),
    "transformers": (
        "tests/trainer/distributed/test_trainer_distributed_deepspeed.py",
        # The other classes start several processes or are slow.
        "-k=TestTrainerIntegrationDeepSpeed or TestNonTrainerIntegrationDeepSpeed",
    ),
}
"""pytest arguments that select each framework's tests of DeepSpeed."""

CHECKPOINTS = {"accelerate": "dsengine", "transformers": "deepspeed"}
"""Checkpoint files that dsengine saves: transformers' tests look for DeepSpeed's."""


def outcomes_file(framework: str, package: str) -> Path:
    """Return the file with outcomes of a framework's tests for a package."""
    return RUNS / f"{framework}-{package}.jsonl"


def run(framework: str, checkout: Path, package: str, *options: str) -> None:
    RUNS.mkdir(parents=True, exist_ok=True)
    roots = [ROOT, ROOT / "engine", ROOT / "tests"]
    paths = [checkout, *roots, *filter(None, [os.environ.get("PYTHONPATH")])]
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
        "TORCH_EXTENSIONS_DIR": str(kernels.build()),
        "DEEPSPEED_TESTS": package,
        "DEEPSPEED_TESTS_TOLD": str(outcomes_file(framework, package)),
    }
    hub = [sys.executable, "-m", "frameworks.their_tests.hub", str(RUNS / "hub")]
    subprocess.run(hub, env=environment, check=True)
    plugin = ("-p", "frameworks.their_tests.plugin", "-p", "no:cacheprovider")
    usual = ("-q", "-o", "addopts=", "-W", "ignore", "--continue-on-collection-errors")
    command = [sys.executable, "-m", "pytest", *plugin, *usual, *SUITES[framework], *options]
    subprocess.run(command, cwd=checkout, env=environment)


def lost(framework: str) -> dict[str, Outcome]:
    """Return tests that pass with DeepSpeed but not with dsengine, with their outcomes."""
    ours, theirs = (read(outcomes_file(framework, package)) for package in PACKAGES)
    return {
        name: ours.get(name, Outcome("failed", "not run"))
        for name, outcome in theirs.items()
        if outcome.kind == "passed" and (name not in ours or ours[name].kind != "passed")
    }


def page(frameworks: list[str], before: str = "") -> str:
    """Return the page for ``frameworks``; other sections are kept from ``before``."""
    kept = {name: found for name in SUITES if (found := _section(before, name))}
    lines = [
        "# The frameworks' own tests of DeepSpeed",
        "",
        *wrap(
            "accelerate's tests/deepspeed and the one-process part of transformers' "
            "test_trainer_distributed_deepspeed, from checkouts of their repositories, on a CPU "
            "with tiny models in place of the hub's, with dsengine and with DeepSpeed 0.19.8. For "
            "transformers' tests, some of which check for them, dsengine saves DeepSpeed's files "
            "(DSENGINE_CHECKPOINTS=deepspeed); with its own files 60 pass. Their test file is a "
            "transcript of commit 0a5ecfb6 without unneeded comments, messages and imports. "
            "DeepSpeed is patched because it fails to broadcast zero-dimensional parameters: "
            "without the patch it passes 21 of transformers' tests and 26 of accelerate's. "
            "Generated in tests/ by `python -m frameworks.their_tests`; their tests are not "
            "included. Tests that are marked slow or require several accelerators are skipped.",
            100,
        ),
        "",
        "| framework | DeepSpeed passes | dsengine passes | tests |",
        "|---|---|---|---|",
    ]
    for framework in SUITES:
        if framework in frameworks:
            ours, theirs = (_passed(framework, package) for package in PACKAGES)
            count = len(read(outcomes_file(framework, "deepspeed")))
            lines.append(f"| {framework} | {theirs} | {ours} | {count} |")
        elif framework in kept:
            lines += [line for line in before.splitlines() if line.startswith(f"| {framework} |")]
    for framework in SUITES:
        lines += ["", f"## {framework}", ""]
        if framework in frameworks:
            lines += ["| test | dsengine | DeepSpeed | reason |", "|---|---|---|---|"]
            lines += _rows(framework)
        elif framework in kept:
            lines += kept[framework]
        else:
            run = f"python -m frameworks.their_tests run {framework} CHECKOUT"
            lines += wrap(f"Not run. With a checkout, run `{run}` in tests/, then `page`.", 100)
    return "\n".join(lines) + "\n"


def _section(text: str, framework: str) -> list[str]:
    """Return the lines of a framework's table in ``text``, if any."""
    _, _, rest = text.partition(f"\n## {framework}\n")
    return [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]


def _rows(framework: str) -> list[str]:
    ours, theirs = (read(outcomes_file(framework, package)) for package in PACKAGES)
    not_run = Outcome("not run", "")
    rows: list[str] = []
    for name in sorted(ours | theirs):
        own, other = ours.get(name, not_run), theirs.get(name, not_run)
        whys = {o.why: None for o in (own, other) if o.kind != "passed" and o.why}
        row = f"| {name} | {own.kind} | {other.kind} | {'; '.join(whys).replace('|', ' ')} |"
        rows.append(row.replace("<", "\\<"))
    return rows


def _passed(framework: str, package: str) -> int:
    return sum(
        outcome.kind == "passed" for outcome in read(outcomes_file(framework, package)).values()
    )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", framework, checkout, *options] if framework in SUITES:
            for package in PACKAGES:
                run(framework, Path(checkout).resolve(), package, *options)
        case ["page"]:
            run_already = [name for name in SUITES if outcomes_file(name, "dsengine").exists()]
            PAGE.write_text(page(run_already, PAGE.read_text("utf-8")), "utf-8")
        case _:
            raise SystemExit(__doc__)
