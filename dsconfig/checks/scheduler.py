"""Rules for the scheduler block."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.keys import is_comment
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import AT_INIT, Finding, Phase
from dsconfig.checks.values import literal_of, shown, wrong_argument
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Effect
from dsconfig.runtimes.base import AUTO
from dsconfig.runtimes.built import Schedule, schedule_built
from dsconfig.schema import ErrorKind
from dsconfig.schema.paths import SCHEDULER, SCHEDULER_PARAMS, SCHEDULER_TYPE
from dsconfig.schema.schedules import OWN, SCHEDULES
from dsconfig.schema.version import Version
from dsconfig.source.edit import as_fix, delete_entry, rename_key, replace_value
from dsconfig.source.pointer import is_block, split

with lazy_imports():
    from dsconfig.schema import spelling


RATE_OF_THE_OPTIMIZER = Version(0, 17, 2)
"""The first release in which a schedule may take its maximum rate from the optimizer."""
POSITIVE_STEPS = {
    "warmup_num_steps": ("0.19.3", "it is raised to 2"),
    "lr_range_test_step_size": ("0.19.4", "it is used unchecked, and 0 makes the first step fail"),
}
"""First release that checks the value, and the behavior of earlier releases."""


def built_schedule(config: Context) -> Schedule | None:
    """Return the schedule that the block creates, or None if absent or unknown."""
    return schedule_built(config.scheduler) if config.scheduler else None


@rule(
    "DSC631",
    Effect.REFUSED,
    triggers="scheduler",
    on_templates=True,
    stops="scheduler AssertionError",
)
def unknown_scheduler(config: Context) -> Iterator[Finding]:
    """Unknown scheduler type

    It must be a schedule of DeepSpeed or a class of torch.optim.lr_scheduler, in exact case.

    bad: {"train_batch_size": 8, "scheduler": {"type": "CosineWarmup", "params": {}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "WarmupCosineLR", "params":
        {"total_num_steps": 1000}}}
    """
    name = config.get("scheduler", "type")
    known = SCHEDULES.get(name) if isinstance(name, str) else None
    if name is None or name == AUTO or (known and known.is_known_at(config.version)):
        return
    if known is not None:
        yield Finding(
            path=SCHEDULER_TYPE,
            message=f"DeepSpeed {config.release} does not have {name} yet, {known.since} does: "
            + AT_INIT,
            help="write WarmupLR or WarmupDecayLR",
        )
        return
    meant = config.closest(name, SCHEDULES) if isinstance(name, str) else None
    edits = replace_value(config.document, "/scheduler/type", meant) if meant else ()
    yield Finding(
        path=SCHEDULER_TYPE,
        message=f"{shown(name)} is not a schedule of DeepSpeed or torch: {AT_INIT}",
        help=f'did you mean "{meant}"?' if meant else f"write one of {', '.join(OWN)}",
        fix=as_fix(edits, safe=meant is not None and spelling.same_letters(meant, str(name))),
    )


@rule("DSC632", Effect.ALTERED, triggers="scheduler")
def scheduler_without_type(config: Context) -> Iterator[Finding]:
    """Scheduler block without `type`

    No schedule is created, and the learning rate is constant.

    bad: {"train_batch_size": 8, "optimizer": {"type": "AdamW"}, "scheduler": {"name": "WarmupLR",
        "params": {}}}
    good: {"train_batch_size": 8, "optimizer": {"type": "AdamW"}, "scheduler": {"type": "WarmupLR",
        "params": {}}}
    """
    block = config.get("scheduler")
    if not is_block(block) or block.get("type") is not None:
        return
    edits = rename_key(config.document, "/scheduler/name", "type")
    yield Finding(
        path=SCHEDULER_TYPE if "type" in block else SCHEDULER,
        message="the scheduler block has no type: no schedule is created",
        help='add "type": "WarmupLR"',
        fix=None if "type" in block else as_fix(edits),
        on_key=True,
    )


@rule(
    "DSC633", Effect.REFUSED, triggers="scheduler", on_templates=True, stops="scheduler TypeError"
)
def unknown_scheduler_argument(config: Context) -> Iterator[Finding]:
    """Unknown scheduler argument

    The constructor raises a TypeError. WarmupLR has no `total_num_steps`, and WarmupCosineLR uses
    ratios of the optimizer's learning rate instead of `warmup_min_lr` and `warmup_max_lr`.

    bad: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_steps": 100}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps":
        100}}}
    """
    target = built_schedule(config)
    if target is None:
        return
    for name, value in config.block(*SCHEDULER_PARAMS).items():
        if name in target.arguments or is_comment(name):
            continue
        path = SCHEDULER_PARAMS / name
        meant = _SYNONYMS.get(name) or config.closest(name, target.arguments)
        schedules = [(own, schedule_built(own)) for own in OWN]
        others = [own for own, kind in schedules if kind and name in kind.arguments]
        meant = None if others or meant not in target.arguments else meant
        edits = ()
        if meant and not config.has(*SCHEDULER_PARAMS, meant):
            edits = rename_key(config.document, path.pointer, meant)
        elif value == AUTO:
            edits = delete_entry(config.document, path.pointer)
        alternative = f"it is an argument of {' and '.join(others)}" if others else "delete it"
        yield Finding(
            path=path,
            message=f'unknown argument "{name}": {config.scheduler} does not accept it: {AT_INIT}',
            help=f'did you mean "{meant}"?' if meant else alternative,
            fix=as_fix(edits, safe=meant is not None and spelling.same_letters(name, meant)),
            on_key=True,
        )


_SYNONYMS = {
    "warmup_steps": "warmup_num_steps",
    "total_steps": "total_num_steps",
    "num_training_steps": "total_num_steps",
    "num_warmup_steps": "warmup_num_steps",
    "max_lr": "warmup_max_lr",
    "min_lr": "warmup_min_lr",
}


@rule("DSC634", Effect.REFUSED, triggers="scheduler", stops="scheduler TypeError")
def scheduler_argument_missing(config: Context) -> Iterator[Finding]:
    """Required scheduler argument is missing

    bad: {"train_batch_size": 8, "scheduler": {"type": "WarmupDecayLR", "params":
        {"warmup_num_steps": 100}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "WarmupDecayLR", "params":
        {"warmup_num_steps": 100, "total_num_steps": 1000}}}
    """
    target = built_schedule(config)
    if target is None:
        return
    params = config.get(*SCHEDULER_PARAMS)
    if not is_block(params):
        if params != AUTO:
            yield Finding(
                path=SCHEDULER_PARAMS,
                message=f"scheduler.params must be an object, even if empty: {AT_INIT}",
                help='add "params": {}',
            )
        return
    for name in target.required:
        if name not in params:
            yield Finding(
                path=SCHEDULER_PARAMS / name,
                message=f"{config.scheduler} requires {name}: {AT_INIT}",
                help=f'add "{name}" to scheduler.params',
            )


@refusal("DSC635", triggers="scheduler", stops="scheduler TypeError")
def torch_scheduler_with_wrapper(config: Context) -> Iterator[Finding]:
    """torch schedules do not support DeepSpeed's optimizer wrappers

    ZeRO, fp16 and bf16 wrap the optimizer, and torch's schedules reject the wrapper.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "scheduler": {"type": "StepLR",
        "params": {"step_size": 2}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "scheduler": {"type":
        "WarmupLR", "params": {}}}
    """
    target = built_schedule(config)
    if target is None or target.kind.is_own:
        return
    wraps = [
        name
        for name, on in (
            (f"ZeRO stage {config.stage}", config.stage > 0),
            ("fp16", config.fp16),
            ("bf16", config.bf16),
        )
        if on
    ]
    if wraps:
        yield Finding(
            path=SCHEDULER_TYPE,
            message=f"torch's {config.scheduler} does not accept the wrapped optimizer of "
            f"{wraps[0]}: " + AT_INIT,
            help=f"write one of {', '.join(OWN)}, or create the schedule in the script",
        )


@rule(
    "DSC636",
    Effect.REFUSED,
    also=(Effect.ALTERED,),
    triggers="scheduler",
    stops="scheduler ValueError",
)
def steps_not_positive(config: Context) -> Iterator[Finding]:
    """Number of steps must be a positive integer

    This applies to the steps of a warmup or a range test. Releases before 0.19.3 silently raise a
    warmup below 2 to 2.

    bad: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps":
        0}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps":
        10}}}
    """
    if config.scheduler not in OWN:
        return
    for name, (release, before) in POSITIVE_STEPS.items():
        value = config.get(*SCHEDULER_PARAMS, name)
        if not config.has(*SCHEDULER_PARAMS, name) or value == AUTO:
            continue
        # DeepSpeed reads 100.0 and 1e2 in a file as integers; a dict keeps the float.
        from_text = config.document.text is not None
        is_integer = isinstance(value, int) or (
            from_text and isinstance(value, float) and value.is_integer()
        )
        if not is_integer or value <= 0:
            checked = config.since(release)
            meant, pointer = literal_of(value), (SCHEDULER_PARAMS / name).pointer
            is_number = isinstance(meant, int)
            edits = replace_value(config.document, pointer, meant) if is_number else ()
            yield Finding(
                path=SCHEDULER_PARAMS / name,
                message=f"{name} is {shown(value)}, but must be a positive integer: "
                + (AT_INIT if checked else before),
                help="write the number of steps, at least 1",
                effect=None if checked else Effect.ALTERED,
                fix=as_fix(edits),
            )


@rule(
    "DSC637",
    Effect.REFUSED,
    also=(Effect.ALTERED,),
    triggers="scheduler",
    stops="scheduler TypeError",
)
def scheduler_argument_value(config: Context) -> Iterator[Finding]:
    """Scheduler argument of a wrong type

    bad: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr":
        "1e-4"}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr":
        1e-4}}}
    """
    rate = SCHEDULER_PARAMS / "warmup_max_lr"
    may_be_null = config.version >= RATE_OF_THE_OPTIMIZER
    if config.has(*rate) and config.get(*rate) is None and not may_be_null:
        yield Finding(
            path=rate,
            message=f"warmup_max_lr is null, which DeepSpeed accepts since "
            f"{RATE_OF_THE_OPTIMIZER}: {AT_INIT}",
            help="write the learning rate, such as the optimizer's",
        )
    for error in config.schema_errors:
        path = split(error.pointer)
        is_value = error.kind in (ErrorKind.TYPE, ErrorKind.BOUND)
        if not is_value or path[:2] != SCHEDULER_PARAMS or len(path) < 3:
            continue
        if path[2] in POSITIVE_STEPS or (error.value is None and path == rate):
            continue
        stops = error.kind is ErrorKind.TYPE and not isinstance(error.value, int | float)
        yield wrong_argument(config, error, Phase.SCHEDULER if stops else None)


@rule("DSC638", Effect.REFUSED, triggers="scheduler", stops="scheduler ValueError")
def one_cycle_steps(config: Context) -> Iterator[Finding]:
    """Invalid OneCycle step size

    `cycle_first_step_size` must be positive, and `cycle_second_step_size` must not be negative.

    bad: {"train_batch_size": 8, "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-5,
        "cycle_max_lr": 1e-3, "cycle_first_step_size": 0}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-5,
        "cycle_max_lr": 1e-3, "cycle_first_step_size": 500}}}
    """
    if config.scheduler != "OneCycle":
        return
    first = config.number(*SCHEDULER_PARAMS, "cycle_first_step_size")
    second = config.number(*SCHEDULER_PARAMS, "cycle_second_step_size")
    wrong = {
        "cycle_first_step_size": first is not None and first <= 0,
        "cycle_second_step_size": second is not None and second < 0,
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            yield Finding(
                path=SCHEDULER_PARAMS / name,
                message=f"{name} is {config.get(*SCHEDULER_PARAMS, name)}: {AT_INIT}",
                help=f'write "{name}": 2000',
            )
