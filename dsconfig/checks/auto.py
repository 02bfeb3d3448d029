"""The word "auto", and who puts a value in its place."""

from collections.abc import Iterator, Mapping

from dsconfig.checks.context import Context
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import AppliesTo, Finding, Path, fills_auto, reaches_deepspeed
from dsconfig.report import Effect
from dsconfig.runtimes.base import AutoHandling, Runtime

REFUSALS = (AutoHandling.REFUSED, AutoHandling.REFUSED_LATE)
OURS = "dsengine"
_EFFECTS = {
    AutoHandling.KEPT: Effect.ALTERED,
    AutoHandling.REFUSED: Effect.REFUSED,
    AutoHandling.REFUSED_LATE: Effect.REFUSED,
}


def _names(fates: Mapping[Runtime, AutoHandling], *wanted: AutoHandling) -> list[str]:
    return [runtime.name for runtime, fate in fates.items() if fate in wanted]


def _where(fates: Mapping[Runtime, AutoHandling], *wanted: AutoHandling) -> AppliesTo:
    """The programs that make one of these of the "auto"."""
    return lambda runtime: fates[runtime] in wanted


def _consequence(config: Context, path: Path, fate: AutoHandling, who: str) -> str:
    if fate is AutoHandling.DEFAULT:
        return f"{who} drops the key and uses the default{config.default_of(path)}"
    if fate is AutoHandling.KEPT:
        return f"{who} keeps the text, which counts as true where a switch is expected"
    when = "is built or steps" if fate is AutoHandling.REFUSED_LATE else "reads the file"
    return f"{who} stops when it {when}"


@rule("DSC101", Effect.ALTERED, also=(Effect.REFUSED,), applies_to=reaches_deepspeed)
def auto_unresolved(config: Context) -> Iterator[Finding]:
    """No program that is going to read this file puts a value in place of "auto".

    DeepSpeed itself knows no "auto": in its checked blocks the key is dropped and the default
    applies (`stage: "auto"` switches ZeRO off), elsewhere the text reaches code that wants a
    number. `dsconfig resolve` writes the values, with a reason for each.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "reduce_bucket_size":
        500000000}}
    """
    for path, fates in config.autos.items():
        if AutoHandling.FILLED in fates.values() or config.is_native_auto(path):
            continue
        runtime, fate = next(iter(fates.items()))
        yield Finding(
            path=path,
            message=f'"auto" in {".".join(path)} is not resolved: '
            + _consequence(config, path, fate, runtime.name),
            help=f"run `dsconfig resolve {config.document.name}`, or write a value",
            effect=_EFFECTS.get(fate),
            late=fate is AutoHandling.REFUSED_LATE,
        )


@rule("DSC102", Effect.INERT, also=(Effect.REFUSED, Effect.ALTERED), applies_to=reaches_deepspeed)
def auto_needs_resolve(config: Context) -> Iterator[Finding]:
    """Only `dsconfig resolve` (and so dsengine) puts a value in place of this "auto".

    In other programs it has no effect where they drop the key, and the default applies; a text
    that is kept where a switch is expected counts as true (`altered`), and at a number they stop.

    with: runtime=None
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "allgather_bucket_size": "auto"}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "allgather_bucket_size":
        500000000}}
    """
    if len(config.runtimes) == 1:
        return
    for path, fates in config.autos.items():
        if _names(fates, AutoHandling.FILLED) != [OURS]:
            continue
        runtime, fate = next(each for each in fates.items() if each[0].name != OURS)
        yield Finding(
            path=path,
            message=f'"auto" in {".".join(path)} is filled by dsengine only: '
            + _consequence(config, path, fate, runtime.name),
            help=f"run `dsconfig resolve {config.document.name}` before other programs read it",
            effect=_EFFECTS.get(fate),
            late=fate is AutoHandling.REFUSED_LATE,
            applies_to=_where(fates, fate),
        )


# Filled by the program itself, or with what `dsconfig resolve` chooses.
@rule("DSC103", Effect.NOTE, applies_to=lambda one: fills_auto(one) or not one.fills_auto)
def auto_filled_by_trainer(config: Context) -> Iterator[Finding]:
    """transformers or accelerate fill this "auto"; a plain DeepSpeed script does not.

    A note to those it works for; with `--runtime deepspeed` it is DSC101.

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
        left = [
            each
            for each in fates.items()
            if each[1] not in (AutoHandling.FILLED, AutoHandling.NATIVE)
        ]
        told = "; ".join(_consequence(config, path, fate, each.name) for each, fate in left)
        yield Finding(
            path=path,
            message=f'"auto" in {".".join(path)} is filled by {" and ".join(filling)}; {told}',
            help=f"for a plain DeepSpeed script run `dsconfig resolve {config.document.name}`",
            applies_to=_where(fates, AutoHandling.FILLED),
        )


@rule("DSC104", Effect.REFUSED, also=(Effect.NOTE,), late=True, applies_to=fills_auto)
def auto_native_refused(config: Context) -> Iterator[Finding]:
    """ "auto" is a setting of DeepSpeed's own here, and accelerate stops at it.

    accelerate refuses every "auto" it has no value for, also where DeepSpeed gives the word a
    meaning. Leaving the key out means the same.

    with: runtime="accelerate"
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 1}, "pipeline": {"stages": "auto"}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 1}, "pipeline": {}}
    """
    for path, fates in config.autos.items():
        stopping = [each.name for each, fate in fates.items() if fate in REFUSALS]
        if not stopping or not config.is_native_auto(path):
            continue
        yield Finding(
            path=path,
            message=f'"auto" in {".".join(path)} is a setting of DeepSpeed, at which '
            f"{' and '.join(stopping)} stops",
            help="leave the key out: auto is its default",
            effect=None if set(fates.values()) <= set(REFUSALS) else Effect.NOTE,
            applies_to=_where(fates, *REFUSALS),
        )
