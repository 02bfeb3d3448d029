"""DeepSpeed's unit tests on dsengine, from a checkout of its repository.

python -m deepspeed_tests run CHECKOUT [--with deepspeed] [FILE]...
python -m deepspeed_tests record
python -m deepspeed_tests page

``run`` goes on where it was stopped; ``record`` keeps what it has found for the page.
"""

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from textwrap import wrap

from deepspeed_tests.outcomes import KINDS, Outcome, read

ROOT = Path(__file__).parents[2]
RUNS = Path(os.environ.get("DEEPSPEED_TESTS_RUNS", ROOT / "runs" / "deepspeed-tests"))
RECORD = ROOT / "tests" / "oracle" / "deepspeed_unit_tests.json"
PAGE = ROOT / "docs" / "deepspeed-tests.md"
COMMIT = "edaa7221"
"""That of DeepSpeed's repository which the record is of."""


KNOWN = {
    "DID NOT RAISE": "DeepSpeed refuses it, dsengine does not",
    "Gradients differ for parameter": "on purpose, fp32 masters begin at unrounded weights",
    "is not finite at step": "on purpose, a gradient that is not finite ends the run",
    "FixtureLookupError": "its fixtures need an older pytest",
}
"""By words of a failure, what is known of its cause."""


def run(checkout: Path, package: str, files: list[str]) -> None:
    RUNS.mkdir(parents=True, exist_ok=True)
    paths = [ROOT, ROOT / "engine", ROOT / "tests"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "LOCAL_SIZE": "2",
        "HF_HUB_OFFLINE": "1",
        "TORCH_EXTENSIONS_DIR": str(RUNS / "extensions"),
        "DEEPSPEED_TESTS": package,
        "DEEPSPEED_TESTS_TOLD": str(RUNS / f"{package}.jsonl"),
    }
    options = ("-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", "-W", "ignore")
    plugin = ("-p", "deepspeed_tests.plugin")
    command = [sys.executable, "-m", "pytest", *plugin, *options, *(files or ["unit"])]
    subprocess.run(command, cwd=checkout / "tests", env=environment)


def record() -> None:
    """Keep what each test came to, and what DeepSpeed itself did of those that it was asked."""
    theirs: dict[str, Outcome] = {}
    if (RUNS / "deepspeed.jsonl").exists():
        theirs = read(RUNS / "deepspeed.jsonl")
    rows = {
        name: [outcome.kind, outcome.why, theirs[name].kind if name in theirs else ""]
        for name, outcome in read(RUNS / "dsengine.jsonl").items()
    }
    RECORD.write_text(json.dumps({"commit": COMMIT, "tests": rows}, indent=0) + "\n", "utf-8")


def recorded() -> dict[str, Outcome]:
    """By name, what dsengine did; without what DeepSpeed was seen to fail or to skip."""
    rows = json.loads(RECORD.read_text("utf-8"))["tests"]
    return {
        name: Outcome(kind, why)
        for name, (kind, why, theirs) in rows.items()
        if kind == "passed" or theirs in ("", "passed")
    }


def page(tests: dict[str, Outcome]) -> str:
    counts = Counter(each.kind for each in tests.values())
    lines = [
        "# DeepSpeed's own unit tests",
        "",
        *wrap(
            f"tests/unit of DeepSpeed's repository at commit {COMMIT}, with dsengine as their "
            "deepspeed, on a CPU over gloo with one and two ranks; of a test with parameters its "
            "last variant, or as many as DEEPSPEED_TESTS_VARIANTS says, of which all have to pass. "
            "Made in tests/ by `python -m deepspeed_tests run CHECKOUT`, `record` and `page`; no "
            "test of theirs is here. A test that failed was put to DeepSpeed 0.19.8 as well, and "
            "is left out where that fails it too; the others were not put to it.",
            100,
        ),
        "",
        f"**{counts['passed']} of {counts['passed'] + counts['failed']}** pass of those that "
        "neither reach into private parts nor are about what is refused.",
        "",
        "| | tests | |",
        "|---|---|---|",
        *(f"| {kind} | {counts[kind]} | {what} |" for kind, what in KINDS.items()),
        "",
        "## Failed",
        "",
        "| test | why |",
        "|---|---|",
        *(f"| {name} | {_why(each)} |" for name, each in tests.items() if each.kind == "failed"),
        "",
        "## Refused by design",
        "",
        *_counted(each.why for each in tests.values() if each.kind == "refused"),
        "",
        "## Private parts",
        "",
        *_counted(each.why for each in tests.values() if each.kind == "private"),
        "",
        "## By file",
        "",
        "| file | " + " | ".join(KINDS) + " |",
        "|---|" + "---|" * len(KINDS),
    ]
    files: dict[str, Counter[str]] = defaultdict(Counter)
    for name, each in tests.items():
        files[name.partition("::")[0]][each.kind] += 1
    for name, found in files.items():
        lines.append(f"| {name} | " + " | ".join(str(found[kind] or "") for kind in KINDS) + " |")
    return "\n".join(lines) + "\n"


def _counted(whys: Iterable[str]) -> list[str]:
    rows = sorted(Counter(whys).items(), key=lambda each: (-each[1], each[0]))
    return ["| which | tests |", "|---|---|", *(f"| {_cell(why)} | {n} |" for why, n in rows)]


def _why(outcome: Outcome) -> str:
    found = next((said for words, said in KNOWN.items() if words in outcome.why), "")
    return f"{found}: {_cell(outcome.why)}" if found else _cell(outcome.why)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", checkout, "--with", package, *files]:
            run(Path(checkout), package, files)
        case ["run", checkout, *files]:
            run(Path(checkout), "dsengine", files)
        case ["record"]:
            record()
        case ["page"]:
            PAGE.write_text(page(recorded()), "utf-8")
        case _:
            raise SystemExit(__doc__)
