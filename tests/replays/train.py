"""Replay DeepSpeed's recorded training runs: losses, norms, loss scales, skipped steps.

[Note: DeepSpeed's faults]
Three of its faults are not copied, so a run is compared up to the first step that one touches:
- at stage 0 in fp16 the loss is not scaled but gradients are unscaled: from the first step;
- at stage 0 in fp16 and bf16 the optimizer takes a step with zero gradients at construction:
  from the first step, where such a step does anything (moments that count steps, decay);
- where the dynamic scale doubles, that step's gradients are divided by the new scale: from that
  step on, whose losses are still good. Where clipping is active it cancels the fault; then only
  the norm that stage 3 reports for that step is not compared.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replays import Case
from training.ranks import RankError, Ranks

LOSS_TOLERANCE = {"fp32": 1e-6, "bf16": 1e-2, "fp16": 1e-2}
NORM_TOLERANCE = {"fp32": 2e-6, "bf16": 3e-2, "fp16": 3e-2}


def replay(path: Path, every: int = 1) -> Iterator[Case]:
    """Yield a case for one in ``every`` recordings."""
    with Ranks(2) as ranks:
        for file in sorted(path.glob("*.json"))[::every]:
            record = json.loads(file.read_text())
            try:
                outcomes = ranks.run("training.recorded:replay", path=str(file))
            except RankError as error:
                outcomes = [{"refused": str(error)}]
            yield compare(record, outcomes)


def compare(record: dict[str, Any], outcomes: list[dict[str, Any]]) -> Case:
    name = record["name"]
    if not record.get("ok", True):
        refusal = outcomes[0]["refused"]
        got = f"refused: {refusal}" if refusal else "works here"
        return Case(name, f"fails: {record['error']}", got, True)
    if outcomes[0]["refused"]:
        return Case(name, "training", f"refused: {outcomes[0]['refused']}", False)
    for expected, got in _disagreements(record, [outcome["steps"] for outcome in outcomes]):
        return Case(name, expected, got, False)
    return Case(name, "equal", "equal", True)


def _disagreements(record: dict[str, Any], ranks: list[list[dict[str, Any]]]) -> Iterator[Any]:
    precision = precision_of(record["config"])
    trust = trusted(record)
    for number, step in enumerate(record["steps"][: trust.losses]):
        ours = [steps[number] for steps in ranks]
        for rank, losses in enumerate(step["loss"]):
            for theirs, mine in zip(losses, ours[rank]["loss"], strict=True):
                if not close(theirs, mine, LOSS_TOLERANCE[precision]):
                    yield f"step {number} loss {theirs}", mine
        if step["loss_scale_used"] not in (None, ours[0]["loss_scale_used"]):
            yield f"step {number} loss scale {step['loss_scale_used']}", ours[0]["loss_scale_used"]
        if number < trust.updates:
            for key in ("skipped_total", "was_step_applied", "global_steps", "micro_steps"):
                if step[key] != ours[0][key]:
                    yield f"step {number} {key} {step[key]}", ours[0][key]
        if number in trust.norms:
            yield from _norm_disagreement(number, _norm(step), ours[0]["grad_norm"], precision)


def _norm_disagreement(
    number: int, theirs: float | None, mine: float | None, precision: str
) -> Iterator[Any]:
    """Yield the norms if both are recorded and they differ."""
    if theirs is None or mine is None or close(theirs, mine, NORM_TOLERANCE[precision]):
        return
    yield f"step {number} norm {theirs}", mine


def _norm(step: dict[str, Any]) -> float | None:
    norm = step["grad_norm"]
    if norm is None:
        norm = step.get("grad_norm_pre_clip_measured")
    return None if norm is None else float(norm)


def close(theirs: float, mine: float, tolerance: float) -> bool:
    if math.isinf(theirs) or math.isnan(theirs):
        return not math.isfinite(mine)
    return abs(theirs - mine) <= tolerance * max(abs(theirs), 1e-12)


def precision_of(config: dict[str, Any]) -> str:
    """Return the lowest precision used for activations or communicated gradients."""
    for name in ("fp16", "bf16"):
        if config.get(name, {}).get("enabled"):
            return name
    if config.get("torch_autocast", {}).get("enabled"):
        return "bf16"
    wire = str(config.get("communication_data_type", "fp32"))
    return wire if wire in LOSS_TOLERANCE else "fp32"


@dataclass(frozen=True)
class Trust:
    """Return the number of valid steps of a record before a fault, and its valid norms."""

    losses: int
    updates: int
    norms: frozenset[int]


def trusted(record: dict[str, Any]) -> Trust:
    """See [Note: DeepSpeed's faults]."""
    config, steps = record["config"], record["steps"]
    stage = config.get("zero_optimization", {}).get("stage", 0)
    mixed = any(config.get(name, {}).get("enabled") for name in ("fp16", "bf16"))
    if stage == 0 and mixed and _zero_step_matters(config):
        return Trust(0, 0, frozenset())
    if stage == 0 and config.get("fp16", {}).get("enabled"):
        return Trust(1, 0, frozenset())
    scales = [step["loss_scale_used"] or 1.0 for step in steps]
    doubling = [k for k in range(len(steps) - 1) if scales[k + 1] > scales[k]]
    good = set(range(len(steps))) - (set(doubling) if stage == 3 else set())
    for number in doubling:
        if not _cancels(config, steps[number], stage):
            return Trust(number + 1, number + 1, frozenset(k for k in good if k <= number))
    return Trust(len(steps), len(steps), frozenset(good))


def _zero_step_matters(config: dict[str, Any]) -> bool:
    """Return whether an optimizer step with zero gradients changes later steps."""
    optimizer = config["optimizer"]
    plain = optimizer["type"].lower() == "sgd"
    return not plain or bool(optimizer["params"].get("weight_decay", 0))


def _cancels(config: dict[str, Any], step: dict[str, Any], stage: int) -> bool:
    """Return whether clipping cancels the fault: halved gradients are divided by a halved norm."""
    clipping, norm = config.get("gradient_clipping", 1.0), _norm(step)
    if clipping <= 0 or norm is None:
        return False
    halved = norm if stage == 3 else norm / 2
    return halved > clipping
