"""Optimizer type and parameters."""

from typing import Any

from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Source
from dsconfig.schema import find
from dsconfig.schema.schedules import SCHEDULES

TYPE, PARAMS = "optimizer.type", "optimizer.params"
PEAKS = tuple(dict.fromkeys(each.peak for each in SCHEDULES.values() if each.peak))
"""Parameters of a schedule that say at which rate it trains."""


def fill(draft: Draft) -> None:
    """Type AdamW; parameters from the training run, else the usual ones of Adam."""
    if draft.is_auto(TYPE):
        rule = "AdamW, which both runtimes build in its CPU or fused form as offload asks"
        draft.fill(TYPE, "AdamW", Source.DEFAULT, rule)
    _learning_rate(draft)
    training = draft.facts.training
    type_ = draft.value(TYPE)
    for name, given in (
        ("betas", training.adam_betas if training else None),
        ("eps", training.adam_epsilon if training else None),
        ("weight_decay", training.weight_decay if training else None),
    ):
        path = f"{PARAMS}.{name}"
        if not draft.is_auto(path):
            continue
        if given is None:
            owner, value = _usual(type_ if isinstance(type_, str) else "AdamW", name)
            draft.fill(path, value, Source.DEFAULT, f"the default of DeepSpeed's {owner}")
        else:
            value = list(given) if isinstance(given, tuple) else given
            draft.fill(path, value, Source.TRAINING, "from the training run")


def _usual(type_: str, name: str) -> tuple[str, Any]:
    """The default of an argument, and whose it is: Adam's where the optimizer has none."""
    own, adam = (find(["optimizer", "params", name], of_type=each) for each in (type_, "AdamW"))
    assert adam is not None  # declared
    if own is None or type_.lower() in ("adam", "adamw"):
        return "Adam", adam.default
    return type_, own.default


def _learning_rate(draft: Draft) -> None:
    path = f"{PARAMS}.lr"
    if not draft.is_auto(path):
        return
    for name in PEAKS:
        peak = draft.value(f"scheduler.params.{name}")
        if isinstance(peak, int | float) and not isinstance(peak, bool):
            rule = "the peak of the schedule in the config, which replaces the optimizer's rate"
            draft.fill(path, peak, Source.CONFIG, rule, **{name: peak})
            return
    training = draft.facts.training
    if training is None or training.learning_rate is None:
        draft.missing(
            path,
            "the learning rate is nowhere given",
            "give --learning-rate or --training-args, or write the number",
        )
        return
    written = "learning_rate" in training.arguments or not training.arguments
    rule = "from the training run" if written else "what TrainingArguments has without one"
    draft.fill(path, training.learning_rate, Source.TRAINING, rule)


def learning_rate(draft: Draft) -> float | None:
    """The rate in force: of the config, else of the training run."""
    written = draft.value(f"{PARAMS}.lr")
    if isinstance(written, int | float) and not isinstance(written, bool):
        return written
    return draft.facts.training.learning_rate if draft.facts.training else None
