"""One step of every family that ranks divide on two ranks, compared with one process.

python -m plans.sweep run [CASE]...     resumes an interrupted run
python -m plans.sweep check             compare the outcomes with the record
python -m plans.sweep record            store the outcomes for the page
python -m plans.sweep page              write docs/internals/parallel-plans.md

Each outcome is a line of runs/plans.jsonl. A case is a family, whose layers its plan splits,
``FAMILY expert``, whose experts its plan divides, or ``FAMILY sequence``, a causal family whose
sequences are divided.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

from dsconfig.facts.hf_attributes import has_expert_plan, recorded_types, tensor_plan
from frameworks.family_sweep import causal_families, cell
from frameworks.running import ROOT
from outcomes import add_outcome, read_outcomes
from training.ranks import RankError, Ranks

RUNS = Path(os.environ.get("PLANS_RUNS", ROOT / "runs" / "plans.jsonl"))
RECORD = ROOT / "tests" / "oracle" / "plan_sweep.json"
PAGE = ROOT / "docs" / "internals" / "parallel-plans.md"
SECONDS = 300.0
SEQUENCE_SECONDS = 60.0
STAGES = (1, 3)
KINDS = {
    "equal": "losses, gradient norm and updated weights within 1e-5 of one process",
    "refused": "refused before training, or in the first forward",
    "no inputs": "its inputs are unknown here",
    "not built": "transformers cannot build a small model from the configuration only",
    "different": "differs from one process",
    "failed": "fails with dsengine",
}


CLASSES = "configuration classes of transformers {} with a"
INTRODUCTIONS = {
    "tensor": (
        "Families with a tensor-parallel plan",
        f"{CLASSES} `base_model_tp_plan`",
        "autotp_size",
        "the same samples",
    ),
    "expert": (
        "Families with an expert-parallel plan",
        f"{CLASSES} `base_model_ep_plan`",
        "autoep_size",
        "its own samples",
    ),
    "sequence": (
        "Causal families with divided sequences",
        "families of transformers {} with a causal language model",
        "sequence_parallel_size",
        "its part of the same samples, which have padding at stage 3",
    ),
}
"""By axis: heading, the families with the release, key, and the samples of each rank."""


def cases() -> list[str]:
    return [*with_plan(), *(f"{family} sequence" for family in causal_families())]


def with_plan() -> list[str]:
    """Return the cases of families with a plan, which are known without transformers."""
    tensor = sorted(family for family in recorded_types() if tensor_plan(family))
    return [
        *tensor,
        *sorted(f"{name} expert" for name in recorded_types() if has_expert_plan(name)),
    ]


def of_axis(rows: Mapping[str, Any], axis: str) -> dict[str, Any]:
    """Return the rows of an axis by family."""
    split = {case: case.partition(" ") for case in rows}
    return {
        family: rows[case]
        for case, (family, _, other) in split.items()
        if (other or "tensor") == axis
    }


def run(names: Iterable[str]) -> None:
    """Run families in sequence, except those with an outcome."""
    done, ranks = read(), Ranks(2)
    try:
        for family in names:
            if family in done:
                continue
            if not ranks.is_usable():
                ranks = Ranks(2)
            add_outcome(RUNS, family, *_outcome(ranks, family))
    finally:
        ranks.close()


def _outcome(ranks: Ranks, case: str) -> tuple[str, str]:
    """Return the first outcome of a stage that is not ``equal``, else that of the last stage."""
    kind, why = "equal", ""
    family, _, axis = case.partition(" ")
    seconds = SEQUENCE_SECONDS if axis == "sequence" else SECONDS
    for stage in STAGES:
        try:
            options = options_of(family, stage, axis or "tensor")
            kind, why = ranks.run("plans.jobs:outcome", seconds=seconds, **options)[0]
        except (RankError, TimeoutError) as error:
            last = [line for line in str(error).splitlines() if line.strip()][-1]
            return "failed", f"stage {stage}: {last}"[:200]
        if kind != "equal":
            break
    return kind, why


def options_of(family: str, stage: int, axis: str) -> dict[str, Any]:
    """Return the arguments of a job; sequences are padded at the last stage."""
    padded = axis == "sequence" and stage == STAGES[-1]
    return {"family": family, "stage": stage, "axis": axis, "padded": padded}


def read() -> dict[str, tuple[str, str]]:
    return read_outcomes(RUNS)


def page(record: dict[str, Any]) -> str:
    parts = [_part(axis, of_axis(record["families"], axis), record) for axis in INTRODUCTIONS]
    return "\n".join(["# Families that ranks divide", *parts]) + "\n"


def _part(axis: str, rows: dict[str, list[str]], record: dict[str, Any]) -> str:
    heading, families, key, samples = INTRODUCTIONS[axis]
    counts = Counter(kind for kind, _ in rows.values())
    lines = [
        "",
        f"## {heading}",
        "",
        *wrap(
            f"The {len(rows)} {families.format(record['transformers'])}, as small models without "
            f"dropout on two CPU ranks with `{key}` 2 in fp32; each rank has {samples}. One step "
            "of SGD at stages 1 and 3 is compared with one process. Generated in tests/ by "
            "`python -m plans.sweep`; `make test-plans` repeats it.",
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
            lines += ["", f"### {kind.capitalize()}", "", "| family | reason |", "|---|---|"]
            lines += [f"| {name} | {cell(why)} |" for name, why in sorted(members.items())]
    equal = sorted(name for name, (kind, _) in rows.items() if kind == "equal")
    return "\n".join([*lines, "", "### Equal", "", *wrap(", ".join(equal), 120)])


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
            run(names or cases())
        case ["check"]:
            raise SystemExit("\n".join(changes()) or None)
        case ["record"]:
            record()
        case ["page"]:
            PAGE.write_text(page(recorded()), "utf-8")
        case _:
            raise SystemExit(__doc__)
