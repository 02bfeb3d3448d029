"""Rules for the learning rate and its schedule."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import Finding
from dsconfig.report import Effect
from dsconfig.schema import paths
from dsconfig.schema.markers import AUTO
from dsconfig.schema.optimizers import optimizer_type
from dsconfig.schema.paths import LEARNING_RATE, OPTIMIZER_PARAMS, SCHEDULER, SCHEDULER_PARAMS
from dsconfig.schema.schedules import SCHEDULES, ScheduleType
from dsconfig.source.pointer import value_at


def _schedule(config: Context) -> ScheduleType | None:
    return SCHEDULES.get(config.scheduler or "")


def _warms_up(config: Context) -> bool:
    schedule = _schedule(config)
    return schedule is not None and schedule.warms_up


@rule("DSC641", Effect.ALTERED, triggers="scheduler")
def schedule_overrides_lr(config: Context) -> Iterator[Finding]:
    """Schedule overrides the optimizer's learning rate

    WarmupLR and WarmupDecayLR warm up to `warmup_max_lr`, regardless of `optimizer.params.lr`.
    Its default in WarmupDecayLR, and in WarmupLR before 0.17.2, is 1e-3, which is often 20 times
    too high.

    bad: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 5e-5}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 5e-5}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 5e-5}}}
    """
    lr = config.number("optimizer", "params", "lr")
    schedule = _schedule(config)
    if lr is None or schedule is None or schedule.peak != "warmup_max_lr":
        return
    path = SCHEDULER_PARAMS / schedule.peak
    if config.has(*path):
        top = config.number(*path)
        source = "warmup_max_lr"
    else:
        known = config.key_at(path)
        top = known.default_at(config.version) if known else None
        source = "the default warmup_max_lr"
    if top is not None and abs(top - lr) > 1e-9 * max(abs(top), abs(lr)):
        yield Finding(
            path=path if config.has(*path) else SCHEDULER_PARAMS,
            message=f"{source} {top:g} overrides the optimizer's lr {lr:g}: training uses {top:g}",
            help=f'write "warmup_max_lr": {lr:g}, or the same value in both keys',
            on_key=not config.has(*path),
        )


@rule("DSC642", Effect.INERT, also=(Effect.NOTE,), triggers="scheduler")
def warmup_longer_than_training(config: Context) -> Iterator[Finding]:
    """Warmup as long as training, or longer

    A decay after the warmup never starts, and the learning rate may not reach its maximum. The
    number of steps is `total_num_steps`, or comes from `--training-args`.

    bad: {"train_batch_size": 8, "scheduler": {"type": "WarmupDecayLR", "params":
        {"total_num_steps": 5, "warmup_num_steps": 100}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "WarmupDecayLR", "params":
        {"total_num_steps": 1000, "warmup_num_steps": 100}}}
    """
    if not _warms_up(config):
        return
    path = SCHEDULER_PARAMS / "total_num_steps"
    training = config.facts.training
    total = config.number(*path) if config.has(*path) else (training and training.total_steps)
    warmup = config.number(*SCHEDULER_PARAMS, "warmup_num_steps")
    if warmup is None:
        warmup = 1000 if not config.has(*SCHEDULER_PARAMS, "warmup_num_steps") else None
    decays = config.scheduler != "WarmupLR"
    if total is None or warmup is None or not 0 < total < warmup + decays:
        return
    reached = "" if total == warmup else "the learning rate never reaches its maximum"
    undecayed = "the decay has no effect" if decays else ""
    yield Finding(
        path=path if config.has(*path) else SCHEDULER_PARAMS / "warmup_num_steps",
        message=f"training has {total:g} steps and warmup {warmup:g}: "
        + ", and ".join(filter(None, (reached, undecayed))),
        help="lower warmup_num_steps; a few percent of the training steps are typical",
        effect=None if decays else Effect.NOTE,
    )


@rule("DSC643", Effect.ALTERED, triggers="scheduler")
def total_steps_not_positive(config: Context) -> Iterator[Finding]:
    """`total_num_steps` is zero or negative

    The learning rate drops to its final value right after the warmup.

    bad: {"train_batch_size": 8, "scheduler": {"type": "WarmupDecayLR", "params":
        {"total_num_steps": -5, "warmup_num_steps": 2}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "WarmupDecayLR", "params":
        {"total_num_steps": 500, "warmup_num_steps": 2}}}
    """
    value = config.number(*SCHEDULER_PARAMS, "total_num_steps")
    if value is not None and value <= 0 and _warms_up(config):
        yield Finding(
            path=SCHEDULER_PARAMS / "total_num_steps",
            message=f"total_num_steps is {value:g}: the learning rate drops to its final value "
            "right "
            "after the warmup",
            help="write the total number of optimizer steps",
        )


@rule("DSC644", Effect.ALTERED, triggers="scheduler")
def rate_out_of_range(config: Context) -> Iterator[Finding]:
    """Negative learning rate, or ratio outside 0 to 1

    bad: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr":
        -1.0}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0}}}
    """
    rates = ("warmup_min_lr", "warmup_max_lr", "cycle_min_lr", "cycle_max_lr")
    for name in (*rates, "lr_range_test_min_lr"):
        value = config.number(*SCHEDULER_PARAMS, name)
        if value is not None and value < 0:
            yield Finding(
                path=SCHEDULER_PARAMS / name,
                message=f"{name} is {value:g}: a negative learning rate maximizes the loss",
                help=f'set "{name}" to 0 or more',
            )
    for name in ("warmup_min_ratio", "cos_min_ratio"):
        value = config.number(*SCHEDULER_PARAMS, name)
        if value is not None and not 0 <= value <= 1:
            yield Finding(
                path=SCHEDULER_PARAMS / name,
                message=f"{name} is {value:g}: it is a fraction of the optimizer's lr, from 0 to 1",
                help=f'set "{name}" to a value from 0 to 1',
            )


@rule("DSC645", Effect.ALTERED, triggers="scheduler")
def schedule_inverted(config: Context) -> Iterator[Finding]:
    """Minimum of the schedule is above its maximum

    The learning rate decreases where it should increase.

    bad: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0.1,
        "warmup_max_lr": 0.001}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr":
        0.001, "warmup_max_lr": 0.1}}}
    """
    pairs = (("warmup_min_lr", "warmup_max_lr"), ("cycle_min_lr", "cycle_max_lr"))
    for low, high in (*pairs, ("cycle_min_mom", "cycle_max_mom")):
        bottom, top = config.number(*SCHEDULER_PARAMS, low), config.number(*SCHEDULER_PARAMS, high)
        if bottom is not None and top is not None and bottom > top:
            yield Finding(
                path=SCHEDULER_PARAMS / low,
                message=f"{low} {bottom:g} is above {high} {top:g}: the schedule is inverted",
                help="swap the two values",
            )


@rule("DSC646", Effect.ALTERED, triggers="scheduler")
def unknown_warmup_type(config: Context) -> Iterator[Finding]:
    """Unknown `warmup_type`

    It must be `log` or `linear`. DeepSpeed uses `log` for any other value and logs a warning.

    bad: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_type":
        "cosine"}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_type":
        "linear"}}}
    """
    path = SCHEDULER_PARAMS / "warmup_type"
    if not _warms_up(config) or not config.has(*path):
        return
    value, known = config.get(*path), config.key_at(path)
    if known and value not in (*known.choices, "auto"):
        yield Finding(
            path=path,
            message=f"warmup_type {value!r} is unknown: DeepSpeed uses log",
            help='write "linear" or "log"',
        )


@rule("DSC647", Effect.NOTE, triggers="scheduler")
def warmup_of_one_step(config: Context) -> Iterator[Finding]:
    """Warmup of one step

    DeepSpeed raises it to two steps. With `warmup_type` log the learning rates are the same; with
    linear, the second step has half the learning rate.

    bad: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps":
        1}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps":
        2}}}
    """
    value = config.number(*SCHEDULER_PARAMS, "warmup_num_steps")
    is_filled = value_at(config.as_written, paths.WARMUP_STEPS) == AUTO
    if _warms_up(config) and value == 1 and not is_filled:
        yield Finding(
            path=SCHEDULER_PARAMS / "warmup_num_steps",
            message="warmup_num_steps 1 is raised to 2, the minimum",
            help="write 2 or more",
        )


@rule("DSC648", Effect.INERT, triggers="scheduler")
def cycle_without_momentum(config: Context) -> Iterator[Finding]:
    """OneCycle momentum requires an optimizer with betas

    bad: {"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "scheduler":
        {"type": "OneCycle", "params": {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "scheduler":
        {"type": "OneCycle", "params": {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1, "cycle_momentum":
        false}}}
    """
    moves = config.get(*SCHEDULER_PARAMS, "cycle_momentum") is not False
    if (
        config.scheduler != "OneCycle"
        or not moves
        or optimizer_type(config.optimizer or "") is None
    ):
        return
    if config.key_at(OPTIMIZER_PARAMS / "betas") is None:
        yield Finding(
            path=SCHEDULER_PARAMS / "cycle_momentum",
            message=f"OneCycle cycles betas, but {config.optimizer} has none: only the learning "
            "rate cycles",
            help='write "cycle_momentum": false',
        )


@rule("DSC649", Effect.INERT, triggers="optimizer")
def learning_rate_zero(config: Context) -> Iterator[Finding]:
    """Learning rate is 0

    No schedule raises it, so the weights do not change.

    bad: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
    """
    schedule = _schedule(config)
    raised = schedule is not None and schedule.sets_rate
    if config.number("optimizer", "params", "lr") == 0 and not raised:
        yield Finding(
            path=LEARNING_RATE,
            message="the learning rate is 0: the optimizer has no effect, and the weights do not "
            "change",
            help='write "lr": 1e-4',
        )


@rule("DSC650", Effect.NOTE, triggers="scheduler")
def scheduler_without_optimizer(config: Context) -> Iterator[Finding]:
    """Scheduler without an optimizer

    The script must pass an optimizer.

    bad: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "scheduler": {"type": "WarmupLR", "params": {}}}
    """
    alone = not config.has("optimizer") and config.facts.client_optimizer is None
    if config.scheduler and alone:
        yield Finding(
            path=SCHEDULER,
            message="the config has a scheduler but no optimizer: unless the script passes one, "
            "the "
            "first step fails",
            help='add an "optimizer" block if the script does not pass one',
            on_key=True,
        )
