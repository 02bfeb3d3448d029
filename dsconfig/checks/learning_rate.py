"""What the schedule does to the learning rate: who wins, and where it goes wrong."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import Finding
from dsconfig.report import Effect
from dsconfig.schema.optimizers import optimizer_type
from dsconfig.schema.schedules import SCHEDULES, ScheduleType

PARAMS = ("scheduler", "params")


def _schedule(config: Context) -> ScheduleType | None:
    return SCHEDULES.get(config.scheduler or "")


def _warms_up(config: Context) -> bool:
    found = _schedule(config)
    return found is not None and found.warms_up


@rule("DSC641", Effect.ALTERED, triggers="scheduler")
def schedule_overrides_lr(config: Context) -> Iterator[Finding]:
    """The schedule sets another learning rate than the optimizer block says.

    WarmupLR and WarmupDecayLR go to `warmup_max_lr`, whatever `optimizer.params.lr` is.
    WarmupDecayLR without it goes to 1e-3, which is often twenty times too much; so did WarmupLR
    before 0.17.2.

    bad: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 5e-5}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 5e-5}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 5e-5}}}
    """
    lr = config.number("optimizer", "params", "lr")
    schedule = _schedule(config)
    if lr is None or schedule is None or schedule.peak != "warmup_max_lr":
        return
    path = (*PARAMS, schedule.peak)
    if config.has(*path):
        top = config.number(*path)
        said = "warmup_max_lr"
    else:
        known = config.key_at(path)
        top = known.default_at(config.version) if known else None
        said = "the default warmup_max_lr"
    if top is not None and abs(top - lr) > 1e-9 * max(abs(top), abs(lr)):
        yield Finding(
            path=path if config.has(*path) else PARAMS,
            message=f"{said} {top:g} replaces the optimizer's lr {lr:g}: training runs at {top:g}",
            help=f'write "warmup_max_lr": {lr:g}, or the same rate in both places',
            on_key=not config.has(*path),
        )


@rule("DSC642", Effect.INERT, also=(Effect.NOTE,), triggers="scheduler")
def warmup_longer_than_training(config: Context) -> Iterator[Finding]:
    """Warmup does not end before training does; the rate never reaches its top, and a decay after
    it never comes.

    Without `total_num_steps` in the file the steps of `--training-args` count.

    bad: {"train_batch_size": 8, "scheduler": {"type": "WarmupDecayLR", "params":
        {"total_num_steps": 5, "warmup_num_steps": 100}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "WarmupDecayLR", "params":
        {"total_num_steps": 1000, "warmup_num_steps": 100}}}
    """
    if not _warms_up(config):
        return
    path = (*PARAMS, "total_num_steps")
    training = config.facts.training
    total = config.number(*path) if config.has(*path) else (training and training.total_steps)
    warmup = config.number(*PARAMS, "warmup_num_steps")
    if warmup is None:
        warmup = 1000 if not config.has(*PARAMS, "warmup_num_steps") else None
    if total is None or warmup is None or not 0 < total < warmup:
        return
    decays = config.scheduler != "WarmupLR"
    yield Finding(
        path=path if config.has(*path) else (*PARAMS, "warmup_num_steps"),
        message=f"training has {total:g} steps and warmup takes {warmup:g}: the rate never "
        "reaches its top" + (", and the decay has no effect" if decays else ""),
        help="lower warmup_num_steps; a few percent of training are usual",
        effect=None if decays else Effect.NOTE,
    )


@rule("DSC643", Effect.ALTERED, triggers="scheduler")
def total_steps_not_positive(config: Context) -> Iterator[Finding]:
    """total_num_steps is zero or negative: after warmup the rate is 0 at once.

    bad: {"train_batch_size": 8, "scheduler": {"type": "WarmupDecayLR", "params":
        {"total_num_steps": -5, "warmup_num_steps": 2}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "WarmupDecayLR", "params":
        {"total_num_steps": 500, "warmup_num_steps": 2}}}
    """
    value = config.number(*PARAMS, "total_num_steps")
    if value is not None and value <= 0 and _warms_up(config):
        yield Finding(
            path=(*PARAMS, "total_num_steps"),
            message=f"total_num_steps is {value:g}: after warmup the learning rate falls to its "
            "end at once",
            help="write the number of optimizer steps of the whole training",
        )


@rule("DSC644", Effect.ALTERED, triggers="scheduler")
def rate_out_of_range(config: Context) -> Iterator[Finding]:
    """A learning rate of the schedule is negative (the model unlearns), or a ratio outside
    0 to 1.

    bad: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr":
        -1.0}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0}}}
    """
    rates = ("warmup_min_lr", "warmup_max_lr", "cycle_min_lr", "cycle_max_lr")
    for name in (*rates, "lr_range_test_min_lr"):
        value = config.number(*PARAMS, name)
        if value is not None and value < 0:
            yield Finding(
                path=(*PARAMS, name),
                message=f"{name} is {value:g}: with a negative learning rate the model unlearns",
                help=f'write "{name}": 0 or more',
            )
    for name in ("warmup_min_ratio", "cos_min_ratio"):
        value = config.number(*PARAMS, name)
        if value is not None and not 0 <= value <= 1:
            yield Finding(
                path=(*PARAMS, name),
                message=f"{name} is {value:g}: it is a share of the optimizer's lr, from 0 to 1",
                help=f'write "{name}" between 0 and 1',
            )


@rule("DSC645", Effect.ALTERED, triggers="scheduler")
def schedule_upside_down(config: Context) -> Iterator[Finding]:
    """The lower end of the schedule is above its upper end: the rate falls where it should
    rise.

    bad: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0.1,
        "warmup_max_lr": 0.001}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr":
        0.001, "warmup_max_lr": 0.1}}}
    """
    pairs = (("warmup_min_lr", "warmup_max_lr"), ("cycle_min_lr", "cycle_max_lr"))
    for low, high in (*pairs, ("cycle_min_mom", "cycle_max_mom")):
        bottom, top = config.number(*PARAMS, low), config.number(*PARAMS, high)
        if bottom is not None and top is not None and bottom > top:
            yield Finding(
                path=(*PARAMS, low),
                message=f"{low} {bottom:g} is above {high} {top:g}: the schedule runs upside down",
                help="swap the two",
            )


@rule("DSC646", Effect.ALTERED, triggers="scheduler")
def unknown_warmup_type(config: Context) -> Iterator[Finding]:
    """warmup_type is log or linear; anything else is taken for log with a warning.

    bad: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_type":
        "cosine"}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_type":
        "linear"}}}
    """
    path = (*PARAMS, "warmup_type")
    if not _warms_up(config) or not config.has(*path):
        return
    value, known = config.get(*path), config.key_at(path)
    if known and value not in (*known.choices, "auto"):
        yield Finding(
            path=path,
            message=f"warmup_type {value!r} is unknown: log is used",
            help='write "linear" or "log"',
        )


@rule("DSC647", Effect.NOTE, triggers="scheduler")
def warmup_of_one_step(config: Context) -> Iterator[Finding]:
    """A warmup of one step counts as two: with warmup_type log the rates are the same, with linear
    the second step has half the rate.

    bad: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps":
        1}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps":
        2}}}
    """
    value = config.number(*PARAMS, "warmup_num_steps")
    if _warms_up(config) and value == 1:
        yield Finding(
            path=(*PARAMS, "warmup_num_steps"),
            message="warmup_num_steps 1 counts as 2, the least there is",
            help="write 2 or more",
        )


@rule("DSC648", Effect.INERT, triggers="scheduler")
def cycle_without_momentum(config: Context) -> Iterator[Finding]:
    """OneCycle moves Adam's betas; an optimizer without betas has no momentum to move.

    bad: {"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "scheduler":
        {"type": "OneCycle", "params": {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "scheduler":
        {"type": "OneCycle", "params": {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1, "cycle_momentum":
        false}}}
    """
    moves = config.get(*PARAMS, "cycle_momentum") is not False
    if (
        config.scheduler != "OneCycle"
        or not moves
        or optimizer_type(config.optimizer or "") is None
    ):
        return
    if config.key_at(("optimizer", "params", "betas")) is None:
        yield Finding(
            path=(*PARAMS, "cycle_momentum"),
            message=f"OneCycle moves betas, and {config.optimizer} has none: only the rate cycles",
            help='write "cycle_momentum": false',
        )


@rule("DSC649", Effect.INERT, triggers="optimizer")
def learning_rate_zero(config: Context) -> Iterator[Finding]:
    """The learning rate is 0 and no schedule raises it: nothing is trained.

    bad: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
    """
    schedule = _schedule(config)
    raised = schedule is not None and schedule.sets_rate
    if config.number("optimizer", "params", "lr") == 0 and not raised:
        yield Finding(
            path=("optimizer", "params", "lr"),
            message="the learning rate is 0: the optimizer has no effect, and nothing is trained",
            help='write "lr": 1e-4',
        )


@rule("DSC650", Effect.NOTE, triggers="scheduler")
def scheduler_without_optimizer(config: Context) -> Iterator[Finding]:
    """The file has a schedule and no optimizer: the script has to pass one.

    transformers refuses the other way round only by its own optimizer; see its documentation.

    bad: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "scheduler": {"type": "WarmupLR", "params": {}}}
    """
    alone = not config.has("optimizer") and config.facts.client_optimizer is None
    if config.scheduler and alone:
        yield Finding(
            path=("scheduler",),
            message="the file has a schedule and no optimizer: without one from the script the "
            "first step stops",
            help='add an "optimizer" block if the script passes none',
            on_key=True,
        )
