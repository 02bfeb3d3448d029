"""DeepSpeed's unit tests on dsengine, from a checkout of its repository.

python -m deepspeed_tests run CHECKOUT [--with deepspeed | --rounded] [FILE]...
python -m deepspeed_tests record
python -m deepspeed_tests page

``run`` resumes an interrupted run; ``record`` stores its outcomes for the page. With ``--rounded``,
which is not recorded, models are rounded to 16 bits before ``initialize``.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import wrap

from deepspeed_tests.outcomes import KINDS, Outcome, read

ROOT = Path(__file__).parents[2]
RUNS = Path(os.environ.get("DEEPSPEED_TESTS_RUNS", ROOT / "runs" / "deepspeed-tests"))
RECORD = ROOT / "tests" / "oracle" / "deepspeed_unit_tests.json"
PAGE = ROOT / "docs" / "internals" / "deepspeed-tests.md"
COMMIT = "edaa7221"
"""The commit of DeepSpeed's repository for which outcomes were recorded."""


_UNROUNDED = "by design, fp32 masters start from unrounded weights: passes with --rounded"
_FULL_SHAPE = "by design, a sharded parameter keeps its full shape"
_RUNS = "DeepSpeed refuses it; dsengine trains it like plain PyTorch"
KNOWN = {
    "Gradients differ for parameter": _UNROUNDED,
    "mismatch at after non-scalar backward": _UNROUNDED,
    "is not finite at step": "by design, a non-finite gradient ends the run",
    "should go back to be 0-sized": _FULL_SHAPE,
    "test_training_partition_cache": _FULL_SHAPE,
    "inputs with requires_grad=False": _RUNS,
    "TestIncorectAllgatherBucketSize": _RUNS + ", because the key is unused",
    "rejects_coalesce_grad_reduction|rejects_overlap_comm": _RUNS,
    "test_zero1_no_offload_uses_bf16_optimizer": _RUNS,
    "test_direct_backward_raises_without_functorch": _RUNS,
    "TestZeroToFP32": "by design, it loads fp32 weights into a model",
    "should decrease after offload": "on a CPU, offloaded states stay in the same memory "
    "(DeepSpeed was still compiling after 150 s)",
    "DID NOT RAISE": "DeepSpeed refuses it; dsengine does not",
}
"""Known causes by a pattern in a test's name or failure; the first match is used."""
_NO_FUNCTION = "the autograd function of DeepSpeed's linear layer"
PRIVATE = {
    "accelerator flatten path": "a log message of DeepSpeed about its flat buffers",
    "should have bit16_groups_flat": "the flat buffers of DeepSpeed's optimizer",
    "assert 'pre_bwd_fn' in": "the hooks that DeepSpeed sets as attributes of modules",
    "issued no collectives": "counts calls of deepspeed.comm by DeepSpeed's optimizer",
    "assert 'LinearFunctionForZeroStage3' in": _NO_FUNCTION,
    "test_setup_context_stores_autocast_attrs": _NO_FUNCTION,
    "no kernel cpu_adam": "DeepSpeed's C++ kernels",
    "test_fp32_adapter_with_bf16_base": "a method that DeepSpeed adds to parameters",
    "test_reused_checkpointed_module_invocations": "the attribute ds_active_sub_modules",
}
"""DeepSpeed's internals that a failed assertion is about, by such a pattern."""


def run(checkout: Path, package: str, files: list[str], *, rounded: bool = False) -> None:
    RUNS.mkdir(parents=True, exist_ok=True)
    name = f"{package}-rounded" if rounded else package
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
        "DEEPSPEED_TESTS_ROUNDED": str(int(rounded)),
        "DEEPSPEED_TESTS_TOLD": str(RUNS / f"{name}.jsonl"),
    }
    options = ("-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", "-W", "ignore")
    plugin = ("-p", "deepspeed_tests.plugin")
    command = [sys.executable, "-m", "pytest", *plugin, *options, *(files or ["unit"])]
    subprocess.run(command, cwd=checkout / "tests", env=environment)


def record() -> None:
    """Store the outcome of each test, and DeepSpeed's own outcomes where it was run.

    Outcomes of tests that were not run this time are kept.
    """
    theirs: dict[str, Outcome] = {}
    if (RUNS / "deepspeed.jsonl").exists():
        theirs = read(RUNS / "deepspeed.jsonl")
    rows = json.loads(RECORD.read_text("utf-8"))["tests"] if RECORD.exists() else {}
    found = read(RUNS / "dsengine.jsonl")
    for file in {name.partition("::")[0] for name in found if "::" in name}:
        rows.pop(file, None)  # could not be collected before
    for name, outcome in found.items():
        if outcome.kind != "skipped" or "::" in name:
            rows[name] = [outcome.kind, outcome.why, rows.get(name, ["", "", ""])[2]]
    for name, row in rows.items():
        file = name.partition("::")[0]  # DeepSpeed may skip the complete file
        if outcome := theirs.get(name) or theirs.get(file):
            row[2] = outcome.kind
    rows = dict(sorted(rows.items()))
    RECORD.write_text(json.dumps({"commit": COMMIT, "tests": rows}, indent=0) + "\n", "utf-8")


def recorded() -> dict[str, Outcome]:
    """Return dsengine's outcomes by name, without tests that DeepSpeed fails or skips."""
    rows = json.loads(RECORD.read_text("utf-8"))["tests"]
    return {
        name: _reclassified(name, Outcome(kind, why))
        for name, (kind, why, theirs) in rows.items()
        if kind == "passed" or theirs in ("", "passed")
    }


def _reclassified(name: str, outcome: Outcome) -> Outcome:
    """Return a failure listed in PRIVATE with the kind ``private``."""
    found = _known(PRIVATE, name, outcome) if outcome.kind == "failed" else ""
    return Outcome("private", found, outcome.why) if found else outcome


def page(tests: dict[str, Outcome]) -> str:
    counts = Counter(outcome.kind for outcome in tests.values())
    lines = [
        "# DeepSpeed's own unit tests",
        "",
        *wrap(
            f"tests/unit of DeepSpeed's repository at commit {COMMIT}, with dsengine as their "
            "deepspeed, on a CPU over gloo with one and two ranks. Of a parametrized test only the "
            "last variant is run, or as many as DEEPSPEED_TESTS_VARIANTS, which must all pass. "
            "Generated in tests/ by `python -m deepspeed_tests run CHECKOUT`, `record` and `page`; "
            "their tests are not included. Failing tests were also run with DeepSpeed 0.19.8, and "
            "are omitted if it fails or skips them too; the record lists them. Outcomes of tests "
            "that a later run did not reach are those of an earlier one.",
            100,
        ),
        "",
        f"**{counts['passed']} of {counts['passed'] + counts['failed']}** tests pass, not counting "
        "those of internals and of refused features.",
        "",
        "| | tests | |",
        "|---|---|---|",
        *(f"| {kind} | {counts[kind]} | {what} |" for kind, what in KINDS.items()),
        "",
        "## Failed",
        "",
        "| test | reason |",
        "|---|---|",
        *(f"| {name} | {_reason(name, e)} |" for name, e in tests.items() if e.kind == "failed"),
        "",
        "## Refused by design",
        "",
        *_by_reason(tests, "refused"),
        "",
        "## Internals",
        "",
        *_by_reason(tests, "private"),
        "",
        "Tests whose assertion concerns internals:",
        "",
        "| test | internals | failure |",
        "|---|---|---|",
        *(f"| {n} | {_cell(e.why)} | {_cell(e.failure)} |" for n, e in tests.items() if e.failure),
        "",
        "## By file",
        "",
        "| file | " + " | ".join(KINDS) + " |",
        "|---|" + "---|" * len(KINDS),
    ]
    files: dict[str, Counter[str]] = defaultdict(Counter)
    for name, outcome in tests.items():
        files[name.partition("::")[0]][outcome.kind] += 1
    for name, found in files.items():
        lines.append(f"| {name} | " + " | ".join(str(found[kind] or "") for kind in KINDS) + " |")
    return "\n".join(lines) + "\n"


def _by_reason(tests: Mapping[str, Outcome], kind: str) -> list[str]:
    """Return a table of reasons with their tests, the most frequent first."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, outcome in tests.items():
        if outcome.kind == kind and not outcome.failure:
            names[outcome.why].append(name)
    rows = sorted(names.items(), key=lambda row: (-len(row[1]), row[0]))
    return [
        "| reason | tests | |",
        "|---|---|---|",
        *(f"| {_cell(why)} | {len(those)} | {_listed(those)} |" for why, those in rows),
    ]


def _listed(names: Iterable[str]) -> str:
    """Return tests by file: ``a/test_b.py: C::test_d, test_e``."""
    files: dict[str, list[str]] = defaultdict(list)
    for name in names:
        file, _, test = name.partition("::")
        files[file].append(test or "all")
    return "; ".join(f"{file}: {', '.join(those)}" for file, those in files.items())


def _known(reasons: Mapping[str, str], name: str, outcome: Outcome) -> str:
    text = f"{name} {outcome.why}"
    return next((cause for pattern, cause in reasons.items() if re.search(pattern, text)), "")


def _reason(name: str, outcome: Outcome) -> str:
    found = _known(KNOWN, name, outcome)
    return f"{found}: {_cell(outcome.why)}" if found else _cell(outcome.why)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", checkout, "--with", package, *files]:
            run(Path(checkout), package, files)
        case ["run", checkout, "--rounded", *files]:
            run(Path(checkout), "dsengine", files, rounded=True)
        case ["run", checkout, *files]:
            run(Path(checkout), "dsengine", files)
        case ["record"]:
            record()
        case ["page"]:
            PAGE.write_text(page(recorded()), "utf-8")
        case _:
            raise SystemExit(__doc__)
