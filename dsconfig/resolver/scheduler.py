"""Resolve scheduler type and parameters: warmup, total steps, learning rates."""

from math import ceil

from dsconfig.facts.naming import named
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.optimizer import PEAKS, learning_rate
from dsconfig.resolver.resolution import Source
from dsconfig.schema import find, paths


def fill(draft: Draft) -> None:
    """Resolve the scheduler block."""
    total = draft.facts.training.total_steps if draft.facts.training else None
    _type(draft, total)
    if draft.is_auto(paths.SCHEDULER_PARAMS):
        keys = ["warmup_min_lr", "warmup_max_lr", "warmup_num_steps"]
        decays = draft.given(paths.SCHEDULER_TYPE) == "WarmupDecayLR"
        keys += ["total_num_steps"] if decays else []
        draft.config["scheduler"]["params"] = dict.fromkeys(keys, "auto")
    if draft.is_auto(paths.MIN_LR):
        draft.set(paths.MIN_LR, 0, Source.DEFAULT, "warmup starts at 0")
    _rates(draft)
    _total(draft, total)
    _warmup(draft, total)


def _type(draft: Draft, total: int | None) -> None:
    if not draft.is_auto(paths.SCHEDULER_TYPE):
        return
    if total is None:
        rule = "total steps unknown: constant learning rate after warmup"
        draft.set(paths.SCHEDULER_TYPE, "WarmupLR", Source.DEFAULT, rule)
    else:
        rule = "total steps known: linear decay to zero"
        draft.set(paths.SCHEDULER_TYPE, "WarmupDecayLR", Source.TRAINING, rule, total_steps=total)


def _rates(draft: Draft) -> None:
    rate = learning_rate(draft)
    for name in PEAKS:
        path = paths.SCHEDULER_PARAMS / name
        if not draft.is_auto(path):
            continue
        if rate is None:
            draft.missing(
                path,
                "the learning rate is not specified, so the peak of the schedule is unknown",
                f"specify {named('learning_rate')} or {named('training_args')}, or write the value",
            )
        else:
            draft.set(
                path, rate, Source.DERIVED, "learning rate of the optimizer", learning_rate=rate
            )


def _total(draft: Draft, total: int | None) -> None:
    path = paths.TOTAL_STEPS
    if not draft.is_auto(path):
        return
    if total is None:
        draft.missing(
            path,
            "the schedule needs the total number of steps, which is not specified",
            f"specify {named('total_steps')} (optimizer steps) or {named('training_args')} with "
            "max_steps",
        )
    else:
        rule = "optimizer steps of the training run"
        draft.set(path, total, Source.TRAINING, rule, total_steps=total)


def _warmup(draft: Draft, total: int | None) -> None:
    path = paths.WARMUP_STEPS
    if not draft.is_auto(path):
        return
    written = draft.given(paths.TOTAL_STEPS)
    total = written if isinstance(written, int) and not isinstance(written, bool) else total
    given = draft.facts.training.warmup_steps if draft.facts.training else None
    if given is None:
        known = find(path)
        usual: int = known.default if known else 0
        steps = usual if total is None else max(1, min(usual, total // 10))
        rule = f"DeepSpeed's default of {usual}, at most a tenth of the run"
        draft.set(path, steps, Source.DEFAULT, rule, total_steps=total)
    elif 0 < given < 1:
        if total is None:
            draft.missing(
                path,
                f"the warmup is {given:g} of the run, whose total steps are not specified",
                f"specify {named('total_steps')} (optimizer steps), or the warmup in steps",
            )
            return
        rule = "fraction of the run, rounded up"
        inputs = {"warmup_steps": given, "total_steps": total}
        draft.set(path, max(1, ceil(total * given)), Source.TRAINING, rule, **inputs)
    else:
        rule = "from the training run; DeepSpeed requires at least 1"
        draft.set(path, max(1, int(given)), Source.TRAINING, rule, warmup_steps=given)
