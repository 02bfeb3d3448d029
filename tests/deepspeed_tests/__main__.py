"""DeepSpeed's unit tests on dsengine, from a checkout of its repository.

python -m deepspeed_tests run CHECKOUT [--with deepspeed] [FILE]...
python -m deepspeed_tests record
python -m deepspeed_tests page

``run`` goes on where it was stopped; ``record`` keeps what it has found for the page.
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
PAGE = ROOT / "docs" / "deepspeed-tests.md"
COMMIT = "edaa7221"
"""That of DeepSpeed's repository which the record is of."""


_UNROUNDED = "on purpose, fp32 masters begin at unrounded weights"
_WHOLE = "on purpose, a divided parameter keeps its whole shape"
_RUNS = "DeepSpeed refuses it, here it runs"
KNOWN = {
    "Gradients differ for parameter": _UNROUNDED,
    "mismatch at after non-scalar backward": _UNROUNDED,
    "is not finite at step": "on purpose, a gradient that is not finite ends the run",
    "ws4_model_checkpoint": "four ranks make its checkpoint",
    "aten.allclose": "torch does not compare shards so",
    "elastic_checkpoint_is_deprecated": "validate warns of it, not the block",
    "reduce_scatter_with_optimizer_offload": "refused too, in other words",
    "test_cpu_adagrad_gpu_error": "its class steps where the parameters are",
    "FixtureLookupError": "its fixture is made by a hook that does not run here",
    "should go back to be 0-sized": _WHOLE,
    "test_training_partition_cache": _WHOLE,
    "fp32_optimizer_states=False": "states are of fp32, as the masters are",
    "no kernel cpu_adam": "there are no kernels of DeepSpeed's",
    "test_cpu_adam_gpu_error": "its class steps where the parameters are",
    "test_cpu_lion_gpu_error": "its class steps where the parameters are",
    "test_unwrap_model.py::TestUnwrapModel": "no hooks are taken off: torch's are right in both",
    "pre_bwd_fn": "the hooks are torch's",
    "inputs with requires_grad=False": _RUNS,
    "TestIncorectAllgatherBucketSize": _RUNS + ", for nothing reads the key",
    "rejects_coalesce_grad_reduction|rejects_overlap_comm": _RUNS,
    "test_zero1_no_offload_uses_bf16_optimizer": _RUNS,
    "test_direct_backward_raises_without_functorch": _RUNS,
    "issued no collectives": "it counts the calls of deepspeed.comm, and torch's are called",
    "ZeRO-3 multi-bucket": "not explained; likely sums of 16 bits rounded in another order",
    "TestZeroToFP32": "on purpose, the weights that it loads into a model are of fp32",
    "test_zero_functorch_linear": "torch's linear has no autograd function of its own",
    "_z3_leaf": "module_granularity_threshold marks no leaves here",
    "accelerator flatten path": "it reads DeepSpeed's log",
    "bit16_groups_flat": "buffers of DeepSpeed's optimizer",
    "DID NOT RAISE": "DeepSpeed refuses it, dsengine does not",
}
"""By a pattern in a test's name or its failure, what is known of the cause; the first that fits."""


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
    """Keep what each test came to, and what DeepSpeed itself did of those that it was asked.

    What was not run this time stays as it was.
    """
    theirs: dict[str, Outcome] = {}
    if (RUNS / "deepspeed.jsonl").exists():
        theirs = read(RUNS / "deepspeed.jsonl")
    rows = json.loads(RECORD.read_text("utf-8"))["tests"] if RECORD.exists() else {}
    for name, outcome in read(RUNS / "dsengine.jsonl").items():
        told = theirs[name].kind if name in theirs else rows.get(name, ["", "", ""])[2]
        rows[name] = [outcome.kind, outcome.why, told]
    rows = dict(sorted(rows.items()))
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
            "test of theirs is here. Some that failed were put to DeepSpeed 0.19.8 as well, and "
            "are left out where that fails them too; the record says which. What a later run did "
            "not come to is as an earlier one has found it.",
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
        if each.kind == kind:
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


def _why(name: str, outcome: Outcome) -> str:
    told = f"{name} {outcome.why}"
    found = next((said for pattern, said in KNOWN.items() if re.search(pattern, told)), "")
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
