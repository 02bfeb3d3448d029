"""TrainingArguments that are given beside a config: names that transformers does not take."""

from collections.abc import Iterator, Mapping

from dsconfig.checks.context import Context
from dsconfig.checks.registry import TRAINING, rule
from dsconfig.checks.rule import Finding, reads_training_arguments
from dsconfig.facts.embedded_facts import is_accelerate_config
from dsconfig.facts.trainer_fields import FORMER, TAKEN
from dsconfig.facts.training import NUMBERS, OF_SCRIPTS
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Effect
from dsconfig.runtimes.transformers import Transformers

with lazy_imports():
    from dsconfig.checks import spelling
    from dsconfig.facts import distributed_config, yaml_text

MOST_NAMED = 3
"""Names of a script's own fields in one note."""


@rule(
    "DSC707",
    Effect.REFUSED,
    also=(Effect.DEPRECATED, Effect.NOTE),
    triggers=TRAINING,
    applies_to=reads_training_arguments,
)
def training_argument(config: Context) -> Iterator[Finding]:
    """A name that the TrainingArguments of this transformers do not take: release 5 dropped it, or
    it is misspelt. What may be a field of the script's own class is a note.

    In the YAML of another trainer a dropped name is `deprecated`: that trainer may run on an
    earlier transformers. In a YAML, 1e-4 without the dot is a text: HfArgumentParser keeps it, and
    scripts that hand their YAML on as arguments of a command line (TRL's) make a number of it.

    with: runtime="transformers", training_args={"warmup_ratio": 0.1}, world_size=1
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    with: runtime="transformers", training_args={"warmup_steps": 0.1}, world_size=1
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    """
    training = config.facts.training
    if training is None:
        return
    holder = config.document.container
    held = bool(holder) and not is_accelerate_config(holder)
    for name in training.arguments.keys() & FORMER.keys():
        stops = "it may run on an earlier one" if held else "it stops"
        yield config.argument_finding(
            name,
            f" is no TrainingArgument of transformers {Transformers.release}: {stops}",
            FORMER[name],
            effect=Effect.DEPRECATED if held else None,
        )
    if held:
        return
    yield from _unknown(config, training.arguments)
    yield from _texts(config)


def _unknown(config: Context, arguments: Mapping[str, object]) -> Iterator[Finding]:
    """Names that are misspelt; one note of them all where some may be of a script's own class."""
    told_elsewhere = {distributed_config.MODEL_INIT, distributed_config.BLOCK}
    unknown = sorted(arguments.keys() - TAKEN - FORMER.keys() - OF_SCRIPTS - told_elsewhere)
    meant = {name: spelling.closest(name, sorted(TAKEN)) for name in unknown}
    if None not in meant.values():
        for name, alike in meant.items():
            said = " is no TrainingArgument: transformers stops"
            yield config.argument_finding(name, said, f'did you mean "{alike}"?')
        return
    others = "".join(f", {name}" for name in unknown[1:MOST_NAMED])
    more = f" and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
    yield config.argument_finding(
        unknown[0],
        f"{others}{more}: no TrainingArguments, at which transformers stops where the script has "
        "no class with such fields",
        "delete them where it has none",
        effect=Effect.NOTE,
    )


def _texts(config: Context) -> Iterator[Finding]:
    """Numbers of a YAML of arguments that are texts to PyYAML, which follows YAML 1.1."""
    file = config.facts.origins.get("training", "")
    if not file.endswith((".yaml", ".yml")):
        return
    for name, text in yaml_text.texts_for_numbers(file).items():
        if name in TAKEN and name in NUMBERS:
            yield config.argument_finding(
                name,
                f" is the text {text!r} to PyYAML, and HfArgumentParser leaves it one: the "
                "optimizer stops",
                f"write {yaml_text.as_number(text)}",
                effect=Effect.NOTE,
            )
