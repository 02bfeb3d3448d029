"""One step of every family that ranks divide on two ranks, compared with one process, or with ranks
of equal random states.

python -m plans.sweep run [CASE]...     resumes an interrupted run
python -m plans.sweep check             compare the outcomes with the record
python -m plans.sweep record            store the outcomes for the page
python -m plans.sweep page              write docs/internals/parallel-plans.md

Each outcome is a line of runs/plans.jsonl. A case is a family, whose layers its plan splits,
``FAMILY expert``, whose experts its plan divides, or either followed by ``dropout``; or a family
whose sequences are divided, followed by the kind of its model: ``FAMILY sequence`` for a causal
one, and the other ``HEADS``.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

from dsconfig.facts.hf_attributes import has_expert_plan, recorded_types, tensor_plan
from frameworks.family_sweep import HEADS, cell, families_with_head
from frameworks.running import ROOT
from outcomes import add_outcome, read_outcomes
from training.ranks import RankError, Ranks

RUNS = Path(os.environ.get("PLANS_RUNS", ROOT / "runs" / "plans.jsonl"))
RECORD = ROOT / "tests" / "oracle" / "plan_sweep.json"
PAGE = ROOT / "docs" / "internals" / "parallel-plans.md"
SECONDS = 600.0
SEQUENCE_SECONDS = 120.0
KINDS = {
    "equal": "losses, gradient norm and updated weights within 1e-5",
    "refused": "refused before training, or in the first forward",
    "not random": "no dropout in its forward",
    "no inputs": "its inputs are unknown here",
    "not built": "transformers cannot build a small model from the configuration only",
    "different": "larger differences",
    "failed": "fails with dsengine",
}


class Part(NamedTuple):
    """The families of one part of the page, and the samples of each rank."""

    heading: str
    families: str
    key: str
    samples: str
    others: str = "one process"
    """What they are compared with."""


CLASSES = "configuration classes of transformers {} with a"
MODELS = "families of transformers {} with"
PADDED = "its part of the same samples, which have padding at stage 3"
EQUAL = "ranks whose random states are equal"
SEEDED = "one process, whose random state for each sample is that of its rank"
PARTS = {
    "tensor": Part(
        "Families with a tensor-parallel plan",
        f"{CLASSES} `base_model_tp_plan`",
        "autotp_size",
        "the same samples",
    ),
    "expert": Part(
        "Families with an expert-parallel plan",
        f"{CLASSES} `base_model_ep_plan`",
        "autoep_size",
        "its own samples",
    ),
    "sequence": Part(
        "Causal families with divided sequences",
        f"{MODELS} a causal language model",
        "sequence_parallel_size",
        PADDED,
    ),
    "seq2seq": Part(
        "Sequence-to-sequence models with divided sequences",
        f"{MODELS} a sequence-to-sequence language model",
        "sequence_parallel_size",
        PADDED,
    ),
    "speech": Part(
        "Speech models with divided sequences",
        f"{MODELS} a speech-to-text model",
        "sequence_parallel_size",
        PADDED,
    ),
    "masked": Part(
        "Masked language models with divided sequences",
        f"{MODELS} a masked language model",
        "sequence_parallel_size",
        PADDED,
    ),
    "classification": Part(
        "Classifiers of samples with divided sequences",
        f"{MODELS} a model for sequence classification",
        "sequence_parallel_size",
        PADDED,
    ),
    "tokens": Part(
        "Classifiers of tokens with divided sequences",
        f"{MODELS} a model for token classification",
        "sequence_parallel_size",
        PADDED,
    ),
    "dropout": Part(
        "Families with a tensor-parallel plan and dropout",
        f"{CLASSES} `base_model_tp_plan`",
        "autotp_size",
        "the same samples and its own random state",
        EQUAL,
    ),
    "expert dropout": Part(
        "Families with an expert-parallel plan and dropout",
        f"{CLASSES} `base_model_ep_plan`",
        "autoep_size",
        "its own samples and random state",
        SEEDED,
    ),
}
"""By axis."""


def cases() -> list[str]:
    divided = (f"{family} {axis}" for axis in HEADS for family in families_with_head(axis))
    return [*with_plan(), *divided]


def with_plan() -> list[str]:
    """Return the cases of families with a plan, which are known without transformers."""
    tensor = sorted(family for family in recorded_types() if tensor_plan(family))
    expert = sorted(f"{name} expert" for name in recorded_types() if has_expert_plan(name))
    return [*tensor, *expert, *(f"{case} dropout" for case in (*tensor, *expert))]


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
    options = options_of(case)
    seconds = SEQUENCE_SECONDS if options["axis"] in HEADS else SECONDS
    try:
        found = ranks.run("plans.jobs:outcome", seconds=seconds, **options)
    except (RankError, TimeoutError) as error:
        last = [line for line in str(error).splitlines() if line.strip()][-1]
        return "failed", last[:200]
    if len({kind for kind, _ in found}) > 1:
        return "failed", f"ranks differ: {found}"[:200]
    return found[0]


def options_of(case: str) -> dict[str, Any]:
    """Return the arguments of a job."""
    family, *words = case.split()
    axis = next((word for word in words if word != "dropout"), "tensor")
    return {"family": family, "axis": axis, "dropout": "dropout" in words}


def read() -> dict[str, tuple[str, str]]:
    return read_outcomes(RUNS)


def page(record: dict[str, Any]) -> str:
    parts = [_part(axis, of_axis(record["families"], axis), record) for axis in PARTS]
    return "\n".join(["# Families that ranks divide", *parts]) + "\n"


def _part(axis: str, rows: dict[str, list[str]], record: dict[str, Any]) -> str:
    part = PARTS[axis]
    counts = Counter(kind for kind, _ in rows.values())
    lines = [
        "",
        f"## {part.heading}",
        "",
        *wrap(
            f"The {len(rows)} {part.families.format(record['transformers'])}, as small models "
            f"{'with' if 'dropout' in axis else 'without'} dropout on two CPU ranks with "
            f"`{part.key}` 2 in fp32; each rank has {part.samples}. One step of SGD at stages 1 "
            f"and 3 is compared with {part.others}. Generated in tests/ by `python -m "
            "plans.sweep`; `make test-plans` repeats it.",
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
