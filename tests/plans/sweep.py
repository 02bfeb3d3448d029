"""One step of every family with a tensor-parallel plan on two ranks, compared with one process.

python -m plans.sweep run [FAMILY]...   resumes an interrupted run
python -m plans.sweep check             compare the outcomes with the record
python -m plans.sweep record            store the outcomes for the page
python -m plans.sweep page              write docs/internals/tensor-plans.md

Each outcome is a line of runs/plans.jsonl.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from textwrap import wrap
from typing import Any

from dsconfig.facts.hf_attributes import recorded_types, tensor_plan
from frameworks.family_sweep import cell
from frameworks.running import ROOT
from training.ranks import RankError, Ranks

RUNS = Path(os.environ.get("PLANS_RUNS", ROOT / "runs" / "plans.jsonl"))
RECORD = ROOT / "tests" / "oracle" / "plan_sweep.json"
PAGE = ROOT / "docs" / "internals" / "tensor-plans.md"
SECONDS = 300.0
STAGES = (1, 3)
KINDS = {
    "equal": "losses, gradient norm and updated weights within 1e-5 of one process",
    "refused": "refused before training",
    "no inputs": "its inputs are unknown here",
    "not built": "transformers cannot build a small model from the configuration only",
    "different": "differs from one process",
    "failed": "fails with dsengine",
}


def families() -> list[str]:
    return sorted(family for family in recorded_types() if tensor_plan(family))


def run(names: Iterable[str]) -> None:
    """Run families in sequence, except those with an outcome."""
    done, ranks = read(), Ranks(2)
    try:
        for family in names:
            if family in done:
                continue
            if not ranks.is_usable():
                ranks = Ranks(2)
            _write(family, *_outcome(ranks, family))
    finally:
        ranks.close()


def _outcome(ranks: Ranks, family: str) -> tuple[str, str]:
    """Return the first outcome of a stage that is not ``equal``, else that of the last stage."""
    kind, why = "equal", ""
    for stage in STAGES:
        try:
            job = "plans.jobs:outcome"
            kind, why = ranks.run(job, seconds=SECONDS, family=family, stage=stage)[0]
        except (RankError, TimeoutError) as error:
            last = [line for line in str(error).splitlines() if line.strip()][-1]
            return "failed", f"stage {stage}: {last}"[:200]
        if kind != "equal":
            break
    return kind, why


def read() -> dict[str, tuple[str, str]]:
    if not RUNS.exists():
        return {}
    lines = (json.loads(line) for line in RUNS.read_text("utf-8").splitlines())
    return {family: (kind, why) for family, kind, why in lines}


def _write(family: str, kind: str, why: str) -> None:
    RUNS.parent.mkdir(parents=True, exist_ok=True)
    with RUNS.open("a") as file:
        file.write(json.dumps([family, kind, why]) + "\n")


def page(record: dict[str, Any]) -> str:
    rows: dict[str, list[str]] = record["families"]
    counts = Counter(kind for kind, _ in rows.values())
    lines = [
        "# Families with a tensor-parallel plan",
        "",
        *wrap(
            f"The {len(rows)} configuration classes of transformers {record['transformers']} with "
            "a `base_model_tp_plan`, as small models without dropout on two CPU ranks with "
            "`autotp_size` 2 in fp32. One step of SGD at stages 1 and 3 is compared with one "
            "process. Generated in tests/ by `python -m plans.sweep`; `make test-plans` repeats "
            "it.",
            100,
        ),
        "",
        "| | families | |",
        "|---|---|---|",
        *(f"| {kind} | {counts[kind]} | {what} |" for kind, what in KINDS.items() if counts[kind]),
    ]
    for kind in list(KINDS)[1:]:
        members = {name: why for name, (found, why) in rows.items() if found == kind}
        if members:
            lines += ["", f"## {kind.capitalize()}", "", "| family | reason |", "|---|---|"]
            lines += [f"| {name} | {cell(why)} |" for name, why in sorted(members.items())]
    equal = sorted(name for name, (kind, _) in rows.items() if kind == "equal")
    return "\n".join([*lines, "", "## Equal", "", *wrap(", ".join(equal), 120)]) + "\n"


def recorded() -> dict[str, Any]:
    return json.loads(RECORD.read_text("utf-8"))


def record() -> None:
    import transformers

    data = {"transformers": transformers.__version__, "families": dict(sorted(read().items()))}
    # The figure of equal families is not the same on every machine.
    data["families"] = {
        name: [kind, "" if kind == "equal" else why]
        for name, (kind, why) in data["families"].items()
    }
    RECORD.write_text(json.dumps(data, indent=0) + "\n", "utf-8")


def changes() -> list[str]:
    """Return the families whose kind is not the recorded one."""
    before = recorded()["families"]
    return [
        f"{name}: {kind} ({why}), recorded: {before.get(name, ['nothing'])[0]}"
        for name, (kind, why) in sorted(read().items())
        if kind != before.get(name, [""])[0]
    ]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", *names]:
            run(names or families())
        case ["check"]:
            raise SystemExit("\n".join(changes()) or None)
        case ["record"]:
            record()
        case ["page"]:
            PAGE.write_text(page(recorded()), "utf-8")
        case _:
            raise SystemExit(__doc__)
