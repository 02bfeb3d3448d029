"""TrainingArguments that are given beside a config: names that transformers does not take."""

from collections.abc import Iterator, Mapping

from dsconfig.checks.context import Context
from dsconfig.checks.registry import TRAINING, rule
from dsconfig.checks.rule import Finding
from dsconfig.facts.held import is_of_accelerate
from dsconfig.facts.trainer_fields import FORMER, TAKEN
from dsconfig.lazily import lazily
from dsconfig.report import Effect
from dsconfig.runtimes.base import Runtime
from dsconfig.runtimes.transformers import Transformers

with lazily():
    from dsconfig.checks import spelling


def _takes_arguments(runtime: Runtime) -> bool:
    return runtime.compares_arguments


@rule(
    "DSC707",
    "training-argument",
    Effect.REFUSED,
    also=(Effect.DEPRECATED,),
    wakes=TRAINING,
    holds=_takes_arguments,
)
def training_argument(config: Context) -> Iterator[Finding]:
    """A name that the TrainingArguments of this transformers do not take: release 5 dropped it, or
    it is misspelt.

    In the YAML of another trainer a dropped name is `deprecated`: that trainer may run on an
    earlier transformers.

    with: runtime="transformers", training_args={"warmup_ratio": 0.1}, world_size=1
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    with: runtime="transformers", training_args={"warmup_steps": 0.1}, world_size=1
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    """
    training = config.facts.training
    if training is None:
        return
    holder = config.document.holder
    held = bool(holder) and not is_of_accelerate(holder)
    release = Transformers.release
    for name in training.arguments.keys() & FORMER.keys():
        stops = "it may run on an earlier one" if held else "it stops"
        yield Finding(
            path=(),
            message=f"{name} is no TrainingArgument of transformers {release}: {stops}",
            help=FORMER[name],
            effect=Effect.DEPRECATED if held else None,
        )
    if held:
        return
    for name, meant in _misspelt(training.arguments).items():
        yield Finding(
            path=(),
            message=f"{name} is no TrainingArgument: transformers stops",
            help=f'did you mean "{meant}"?',
        )


def _misspelt(arguments: Mapping[str, object]) -> Mapping[str, str]:
    """Each name that is nearly one; none where others are of a script's own classes."""
    unknown = arguments.keys() - TAKEN - FORMER.keys()
    meant = {name: spelling.closest(name, sorted(TAKEN)) for name in unknown}
    found = {name: alike for name, alike in meant.items() if alike is not None}
    return found if len(found) == len(meant) else {}
