"""Rules for "auto" values."""

from collections.abc import Iterator, Mapping

from dsconfig.checks.context import Context
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import AppliesTo, Finding, Phase, fills_auto, reaches_deepspeed
from dsconfig.facts.naming import named
from dsconfig.report import Effect, writers
from dsconfig.runtimes.base import AutoHandling, Runtime, every_runtime
from dsconfig.schema.paths import KeyPath

REFUSALS = (AutoHandling.REFUSED, AutoHandling.REFUSED_LATE)
OURS = "dsengine"
_EFFECTS = {
    AutoHandling.KEPT: Effect.ALTERED,
    AutoHandling.REFUSED: Effect.REFUSED,
    AutoHandling.REFUSED_LATE: Effect.REFUSED,
}
_PHASES = {AutoHandling.REFUSED_LATE: Phase.STEP}


def _names(fates: Mapping[Runtime, AutoHandling], *wanted: AutoHandling) -> list[str]:
    return [runtime.name for runtime, fate in fates.items() if fate in wanted]


def _programs_with(fates: Mapping[Runtime, AutoHandling], *wanted: AutoHandling) -> AppliesTo:
    """Return a predicate for programs that handle the "auto" in one of these ways."""
    return lambda runtime: fates[runtime] in wanted


def _consequence(config: Context, path: KeyPath, fate: AutoHandling, program: str) -> str:
    if fate is AutoHandling.DEFAULT:
        return f"{program} ignores it and uses the default{config.default_of(path)}"
    if fate is AutoHandling.KEPT:
        return f"{program} keeps the string, which counts as true for a boolean key"
    if fate is AutoHandling.REFUSED_LATE:
        return f"{program} fails at engine initialization or at the first step"
    return f"{program} rejects the config"


def _remedy(config: Context, path: KeyPath) -> str:
    """Return what to do about an "auto", the likeliest first: few files with it are for DeepSpeed
    alone."""
    filling = [
        other.name
        for other in every_runtime(config.version)
        if fills_auto(other) and other.on_auto(path, config.as_written) is AutoHandling.FILLED
    ]
    write = f"write a value, or run `{writers.shell(_resolve(config))}`"
    if not filling:
        return write
    readers = " or ".join(filling)
    return f"if {readers} reads this file, specify it with {named('runtime')}; else {write}"


def _resolve(config: Context) -> list[str]:
    """Return the command that resolves the file."""
    file = "FILE" if config.document.text is None else config.document.name
    return ["dsconfig", "resolve", "--runtime", OURS, file]


@rule("DSC101", Effect.ALTERED, also=(Effect.REFUSED,), applies_to=reaches_deepspeed)
def auto_unresolved(config: Context) -> Iterator[Finding]:
    """Unresolved value "auto"

    None of the programs that read this config replaces this "auto" with a value. DeepSpeed itself
    does not support "auto": in validated blocks it ignores the key and uses the default
    (`stage: "auto"` disables ZeRO), elsewhere the string reaches code that expects a number.
    `dsconfig resolve --runtime dsengine` writes the values, with a reason for each.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "reduce_bucket_size":
        500000000}}
    """
    for path, fates in config.autos.items():
        filled = AutoHandling.FILLED in fates.values()
        if filled or config.is_native_auto(path) or config.is_refused_by_name(path):
            continue
        runtime, fate = next(iter(fates.items()))
        yield Finding(
            path=path,
            message=f'"auto" in {path} is unresolved: '
            + _consequence(config, path, fate, runtime.name),
            help=_remedy(config, path),
            effect=_EFFECTS.get(fate),
            phase=_PHASES.get(fate),
        )


@rule("DSC102", Effect.INERT, also=(Effect.REFUSED, Effect.ALTERED), applies_to=reaches_deepspeed)
def auto_needs_resolve(config: Context) -> Iterator[Finding]:
    """Value "auto" that only dsengine resolves

    Other programs ignore the key and use the default, keep the string, which counts as true for a
    boolean key (`altered`), or fail where a number is expected. `dsconfig resolve --runtime
    dsengine` writes a value.

    with: runtime=None
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "allgather_bucket_size": "auto"}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "allgather_bucket_size":
        500000000}}
    """
    if len(config.runtimes) == 1:
        return
    for path, fates in config.autos.items():
        if _names(fates, AutoHandling.FILLED) != [OURS] or config.is_refused_by_name(path):
            continue
        runtime, fate = next(item for item in fates.items() if item[0].name != OURS)
        yield Finding(
            path=path,
            message=f'"auto" in {path} is resolved by dsengine only: '
            + _consequence(config, path, fate, runtime.name),
            help=f"run `{writers.shell(_resolve(config))}` before other programs read it",
            effect=_EFFECTS.get(fate),
            phase=_PHASES.get(fate),
            applies_to=_programs_with(fates, fate),
        )


# Filled in by the program itself, or by dsengine.
@rule("DSC103", Effect.NOTE, applies_to=lambda one: fills_auto(one) or not one.fills_auto)
def auto_filled_by_trainer(config: Context) -> Iterator[Finding]:
    """Value "auto" that requires transformers or accelerate

    They fill in this "auto"; a plain DeepSpeed script does not, and `--runtime deepspeed` reports
    it as DSC101.

    with: runtime=None
    bad: {"train_batch_size": "auto"}
    good: {"train_batch_size": 8}
    """
    if len(config.runtimes) == 1:
        return
    for path, fates in config.autos.items():
        filling = [name for name in _names(fates, AutoHandling.FILLED) if name != OURS]
        if not filling:
            continue
        others = "; ".join(
            _consequence(config, path, fate, runtime.name)
            for runtime, fate in fates.items()
            if fate not in (AutoHandling.FILLED, AutoHandling.NATIVE)
        )
        yield Finding(
            path=path,
            message=f'"auto" in {path} is filled in by {" and ".join(filling)}; {others}',
            help=f"for a plain DeepSpeed script, run `{writers.shell(_resolve(config))}`",
            applies_to=_programs_with(fates, AutoHandling.FILLED),
        )


@rule(
    "DSC104", Effect.REFUSED, also=(Effect.NOTE,), applies_to=fills_auto, stops="engine ValueError"
)
def auto_native_refused(config: Context) -> Iterator[Finding]:
    """accelerate rejects an "auto" that DeepSpeed supports

    accelerate rejects every "auto" it has no value for, even where "auto" is a valid value in
    DeepSpeed. Omitting the key has the same meaning.

    with: runtime="accelerate"
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 1}, "pipeline": {"stages": "auto"}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 1}, "pipeline": {}}
    """
    for path, fates in config.autos.items():
        stopping = [runtime.name for runtime, fate in fates.items() if fate in REFUSALS]
        if not stopping or not config.is_native_auto(path):
            continue
        yield Finding(
            path=path,
            message=f'"auto" in {path} is valid in DeepSpeed, but '
            f"{' and '.join(stopping)} rejects it",
            help="delete the key: auto is its default",
            effect=None if set(fates.values()) <= set(REFUSALS) else Effect.NOTE,
            applies_to=_programs_with(fates, *REFUSALS),
        )
