"""Replay folders of files that transformers and accelerate were launched with.

Agreement: DeepSpeed receives the same config, equal in values and types, and nothing that it loads
is refused; or the start is refused, with the same class of error where all reported errors are the
program's own. Errors of one start may be reported in any order.
"""

import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import dsconfig
from dsconfig.facts import TrainingFacts
from dsconfig.facts.inputs import FactError
from dsconfig.report import Diagnostic, Effect
from launches import cases
from launches.cases import Launch
from replays import Case


def replay(path: Path) -> Iterator[Case]:
    for line in path.read_text().splitlines():
        row = json.loads(line)
        case = Launch(row["id"], row["road"], row["processes"], row["files"])
        with tempfile.TemporaryDirectory() as folder:
            yield compared(case, row["outcome"], Path(folder))


def compared(case: Launch, outcome: Mapping[str, Any], folder: Path) -> Case:
    case.write(folder)
    loads = outcome.get("parsed", False)
    expected = outcome["config"] if loads else outcome["error"]
    try:
        refusals, raised, config = ours(case, folder)
    except FactError as error:
        return Case(case.id, expected, f"FactError: {error}", not loads)
    if not loads:
        got = sorted({*refusals, *raised}) or config
        alone = len(refusals) == len(raised) and "config" not in outcome
        same_error = raised <= {outcome["error"]} if alone else True
        return Case(case.id, f"{expected}: {outcome['said']}", got, bool(refusals) and same_error)
    if refusals:
        return Case(case.id, "loads", refusals, False)
    return Case(case.id, expected, config, same(config, expected))


def ours(case: Launch, folder: Path) -> tuple[list[str], set[str], dict[str, Any]]:
    """Return our errors, their exception classes, and the config passed to DeepSpeed."""
    facts = facts_of(case, folder)
    document = dsconfig.read(
        folder / (cases.CONFIG if case.road == cases.TRAINER else cases.LAUNCH)
    )
    runtime = "accelerate" if case.road == cases.ACCELERATE else "transformers"
    report = dsconfig.validate(document, facts, runtime=runtime)
    resolution = dsconfig.resolve(document, facts, runtime=runtime)
    findings = [*report.diagnostics, *resolution.diagnostics]
    refusing = [
        finding
        for finding in findings
        if finding.effect is Effect.REFUSED and not _in_engine(finding)
    ]
    refusals = [f"{finding.code} {finding.message}" for finding in refusing]
    failure, raised = resolution.failure, set[str]()
    if failure is not None and resolution.refusals:
        raised = {failure.exception}
        refusals.append(str(failure))
    return refusals, raised, resolution.config


def _in_engine(finding: Diagnostic) -> bool:
    """Return whether the error occurs after DeepSpeed's parser, where the recording ends."""
    return finding.late and "deepspeed" in f"{finding.name} {finding.message}".lower()


def facts_of(case: Launch, folder: Path) -> dsconfig.Facts:
    """Return the facts of the equivalent command-line flags."""
    known: dict[str, Any] = {"model": folder / cases.MODEL, "gpus": case.processes}
    if case.road != cases.ACCELERATE:
        return dsconfig.gather(**known, training_args=folder / cases.ARGUMENTS)
    script = {
        "micro_batch_size": cases.BATCH,
        "learning_rate": cases.LEARNING_RATE,
        "weight_decay": cases.WEIGHT_DECAY,
        "warmup_steps": cases.WARMUP,
        "total_steps": cases.STEPS,
    }
    facts = dsconfig.gather(**known)
    return replace(facts, training=TrainingFacts(**script))


def same(left: Any, right: Any) -> bool:
    """Return whether values and types are equal; NaN equals NaN."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return type(left) is type(right) and left == right
