"""DeepSpeed's unit tests on dsengine, from a checkout of its repository.

python -m deepspeed_tests run CHECKOUT [--with deepspeed | --rounded] [FILE]...
python -m deepspeed_tests record
python -m deepspeed_tests page

``run`` goes on where it was stopped; ``record`` keeps what it has found for the page. With
``--rounded``, which is not recorded, models are rounded to 16 bits before ``initialize`` has them.
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
"""That of DeepSpeed's repository which the record is of."""


_UNROUNDED = "on purpose, fp32 masters begin at unrounded weights: with --rounded it passes"
_WHOLE = "on purpose, a divided parameter keeps its whole shape"
_RUNS = "DeepSpeed refuses it, here it runs and trains as plain PyTorch does"
KNOWN = {
    "Gradients differ for parameter": _UNROUNDED,
    "mismatch at after non-scalar backward": _UNROUNDED,
    "is not finite at step": "on purpose, a gradient that is not finite ends the run",
    "should go back to be 0-sized": _WHOLE,
    "test_training_partition_cache": _WHOLE,
    "inputs with requires_grad=False": _RUNS,
    "TestIncorectAllgatherBucketSize": _RUNS + ", for nothing reads the key",
    "rejects_coalesce_grad_reduction|rejects_overlap_comm": _RUNS,
    "test_zero1_no_offload_uses_bf16_optimizer": _RUNS,
    "test_direct_backward_raises_without_functorch": _RUNS,
    "TestZeroToFP32": "on purpose, the weights that it loads into a model are of fp32",
    "should decrease after offload": "on a CPU what leaves the device stays in the same memory "
    "(DeepSpeed was still compiling after 150 s)",
    "DID NOT RAISE": "DeepSpeed refuses it, dsengine does not",
}
"""By a pattern in a test's name or its failure, what is known of the cause; the first that fits."""
_NO_FUNCTION = "the autograd function of DeepSpeed's linear layer"
PRIVATE = {
    "accelerator flatten path": "a line of DeepSpeed's log, about its flat buffers",
    "should have bit16_groups_flat": "the flat buffers of DeepSpeed's optimizer",
    "assert 'pre_bwd_fn' in": "the hooks that DeepSpeed sets as attributes of modules",
    "issued no collectives": "counts calls that DeepSpeed's optimizer makes of deepspeed.comm",
    "assert 'LinearFunctionForZeroStage3' in": _NO_FUNCTION,
    "test_setup_context_stores_autocast_attrs": _NO_FUNCTION,
    "no kernel cpu_adam": "DeepSpeed's kernels in C++",
    "test_fp32_adapter_with_bf16_base": "a method that DeepSpeed gives parameters",
    "test_reused_checkpointed_module_invocations": "the mark _z3_leaf, then ds_active_sub_modules",
}
"""By such a pattern, what of DeepSpeed's own classes the assertion is about which has failed."""


def run(checkout: Path, package: str, files: list[str], *, rounded: bool = False) -> None:
    RUNS.mkdir(parents=True, exist_ok=True)
    told = f"{package}-rounded" if rounded else package
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
        "DEEPSPEED_TESTS_TOLD": str(RUNS / f"{told}.jsonl"),
    }
    options = ("-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", "-W", "ignore")
    plugin = ("-p", "deepspeed_tests.plugin")
    command = [sys.executable, "-m", "pytest", *plugin, *options, *(files or ["unit"])]
    subprocess.run(command, cwd=checkout / "tests", env=environment)


def record() -> None:
    """Keep what each test came to, and what DeepSpeed itself did of those that it was asked.

    What was not run this time stays as it was.
    """
    theirs: dict[str, Outcome] = {}
    if (RUNS / "deepspeed.jsonl").exists():
        theirs = read(RUNS / "deepspeed.jsonl")
    rows = json.loads(RECORD.read_text("utf-8"))["tests"] if RECORD.exists() else {}
    found = read(RUNS / "dsengine.jsonl")
    for file in {name.partition("::")[0] for name in found if "::" in name}:
        rows.pop(file, None)  # it could not be collected before
    for name, outcome in found.items():
        if outcome.kind != "skipped" or "::" in name:
            rows[name] = [outcome.kind, outcome.why, rows.get(name, ["", "", ""])[2]]
    for name, row in rows.items():
        file = name.partition("::")[0]  # DeepSpeed may skip it as a whole
        if told := theirs.get(name) or theirs.get(file):
            row[2] = told.kind
    rows = dict(sorted(rows.items()))
    RECORD.write_text(json.dumps({"commit": COMMIT, "tests": rows}, indent=0) + "\n", "utf-8")


def recorded() -> dict[str, Outcome]:
    """By name, what dsengine did; without what DeepSpeed was seen to fail or to skip."""
    rows = json.loads(RECORD.read_text("utf-8"))["tests"]
    return {
        name: _judged(name, Outcome(kind, why))
        for name, (kind, why, theirs) in rows.items()
        if kind == "passed" or theirs in ("", "passed")
    }


def _judged(name: str, outcome: Outcome) -> Outcome:
    """A failure as one of the kind private, where PRIVATE knows it."""
    found = _known(PRIVATE, name, outcome) if outcome.kind == "failed" else ""
    return Outcome("private", found, outcome.why) if found else outcome


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
            "test of theirs is here. Those that failed were put to DeepSpeed 0.19.8 as well, and "
            "are left out where that fails or skips them here; the record says which. What a later "
            "run did not come to is as an earlier one has found it.",
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
        *(f"| {name} | {_why(name, e)} |" for name, e in tests.items() if e.kind == "failed"),
        "",
        "## Refused by design",
        "",
        *_by_reason(tests, "refused"),
        "",
        "## Private parts",
        "",
        *_by_reason(tests, "private"),
        "",
        "Those whose assertion is about such a part, where no name has told it:",
        "",
        "| test | what it is about | how it fails |",
        "|---|---|---|",
        *(f"| {n} | {_cell(e.why)} | {_cell(e.words)} |" for n, e in tests.items() if e.words),
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


def _by_reason(tests: Mapping[str, Outcome], kind: str) -> list[str]:
    """A table of reasons, the most frequent first, with the tests that each has."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, each in tests.items():
        if each.kind == kind and not each.words:
            names[each.why].append(name)
    rows = sorted(names.items(), key=lambda row: (-len(row[1]), row[0]))
    return [
        "| which | tests | |",
        "|---|---|---|",
        *(f"| {_cell(why)} | {len(those)} | {_listed(those)} |" for why, those in rows),
    ]


def _listed(names: Iterable[str]) -> str:
    """Tests by file: ``a/test_b.py: C::test_d, test_e``."""
    files: dict[str, list[str]] = defaultdict(list)
    for name in names:
        file, _, test = name.partition("::")
        files[file].append(test or "all")
    return "; ".join(f"{file}: {', '.join(those)}" for file, those in files.items())


def _known(reasons: Mapping[str, str], name: str, outcome: Outcome) -> str:
    told = f"{name} {outcome.why}"
    return next((said for pattern, said in reasons.items() if re.search(pattern, told)), "")


def _why(name: str, outcome: Outcome) -> str:
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
