"""Optimizer type and parameters."""

from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Source

TYPE, PARAMS = "optimizer.type", "optimizer.params"
PEAKS = ("warmup_max_lr", "cycle_max_lr")
"""Parameters of a schedule that say at which rate it trains."""


def fill(draft: Draft) -> None:
    """Type AdamW; parameters from the training run, else the usual ones of Adam."""
    if draft.is_auto(TYPE):
        rule = "AdamW, which both runtimes build in its CPU or fused form as offload asks"
        draft.fill(TYPE, "AdamW", Source.DEFAULT, rule)
    _learning_rate(draft)
    training = draft.facts.training
    for name, given, usual in (
        ("betas", training.adam_betas if training else None, (0.9, 0.999)),
        ("eps", training.adam_epsilon if training else None, 1e-8),
        ("weight_decay", training.weight_decay if training else None, 0.0),
    ):
        path = f"{PARAMS}.{name}"
        if not draft.is_auto(path):
            continue
        value = usual if given is None else given
        source = Source.DEFAULT if given is None else Source.TRAINING
        said = "the default of DeepSpeed's Adam" if given is None else "from the training run"
        draft.fill(path, list(value) if isinstance(value, tuple) else value, source, said)


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
