"""Resolve optimizer type and parameters."""

from typing import Any

from dsconfig.facts.naming import named
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Source
from dsconfig.schema import find
from dsconfig.schema.paths import LEARNING_RATE, OPTIMIZER_PARAMS, OPTIMIZER_TYPE, SCHEDULER_PARAMS
from dsconfig.schema.schedules import SCHEDULES

PEAKS = tuple(dict.fromkeys(schedule.peak for schedule in SCHEDULES.values() if schedule.peak))
"""Schedule parameters that set the peak learning rate."""


def fill(draft: Draft) -> None:
    """Use AdamW, with parameters of the training run or else Adam's defaults."""
    if draft.is_auto(OPTIMIZER_TYPE):
        rule = "AdamW; its CPU or fused version follows from offload"
        draft.set(OPTIMIZER_TYPE, "AdamW", Source.DEFAULT, rule)
    _learning_rate(draft)
    training = draft.facts.training
    type_ = draft.given(OPTIMIZER_TYPE)
    for name, requested in (
        ("betas", training.adam_betas if training else None),
        ("eps", training.adam_epsilon if training else None),
        ("weight_decay", training.weight_decay if training else None),
    ):
        path = OPTIMIZER_PARAMS / name
        if not draft.is_auto(path):
            continue
        if requested is None:
            owner, value = _usual(type_ if isinstance(type_, str) else "AdamW", name)
            draft.set(path, value, Source.DEFAULT, f"default of DeepSpeed's {owner}")
        else:
            value = list(requested) if isinstance(requested, tuple) else requested
            draft.set(path, value, Source.TRAINING, "from the training run")


def _usual(type_: str, name: str) -> tuple[str, Any]:
    """Return the optimizer with a default for an argument (or Adam), and the default."""
    own, adam = (find(OPTIMIZER_PARAMS / name, of_type=kind) for kind in (type_, "AdamW"))
    assert adam is not None  # declared
    if own is None or type_.lower() in ("adam", "adamw"):
        return "Adam", adam.default
    return type_, own.default


def _learning_rate(draft: Draft) -> None:
    path = LEARNING_RATE
    if not draft.is_auto(path):
        return
    for name in PEAKS:
        peak = draft.given(SCHEDULER_PARAMS / name)
        if isinstance(peak, int | float) and not isinstance(peak, bool):
            rule = "peak learning rate of the schedule, which replaces the optimizer's"
            draft.set(path, peak, Source.CONFIG, rule, **{name: peak})
            return
    training = draft.facts.training
    if training is None or training.learning_rate is None:
        draft.missing(
            path,
            "the learning rate is not specified",
            f"specify {named('learning_rate')} or {named('training_args')}, or write the value",
        )
        return
    written = "learning_rate" in training.arguments or not training.arguments
    rule = "from the training run" if written else "default of TrainingArguments"
    draft.set(path, training.learning_rate, Source.TRAINING, rule)


def learning_rate(draft: Draft) -> float | None:
    """Return the learning rate of the config, or else of the training run."""
    written = draft.given(LEARNING_RATE)
    if isinstance(written, int | float) and not isinstance(written, bool):
        return written
    return draft.facts.training.learning_rate if draft.facts.training else None
