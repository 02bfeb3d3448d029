"""Rule for TrainingArguments that transformers does not accept."""

from collections.abc import Iterator, Mapping

from dsconfig.checks.context import Context
from dsconfig.checks.registry import TRAINING, rule
from dsconfig.checks.rule import Finding, every_program, reads_training_arguments
from dsconfig.facts import Facts
from dsconfig.facts.embedded_facts import is_accelerate_config
from dsconfig.facts.trainer_fields import (
    FORMER,
    REMOVED,
    TAKEN,
    misspelled_arguments,
    unknown_arguments,
)
from dsconfig.facts.training import NUMBERS
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Effect
from dsconfig.runtimes.transformers import Transformers
from dsconfig.schema.version import Version

with lazy_imports():
    from dsconfig.facts import dialects, yaml_text

MOST_NAMED = 3
"""Names listed in one note."""


TRAINER = "transformers"
"""The dialect of scripts that parse TrainingArguments themselves."""


@rule(
    "DSC707",
    Effect.REFUSED,
    also=(Effect.DEPRECATED, Effect.INERT, Effect.NOTE),
    triggers=TRAINING,
    applies_to=reads_training_arguments,
)
def training_argument(config: Context) -> Iterator[Finding]:
    """Unknown, removed or contradictory TrainingArgument

    transformers removed the name, or it is misspelled, or `fp16` and `bf16` are both true. A name
    that may be a field of the script's own class is reported as a `note`. An earlier release
    (`--with transformers==4.57.1`) may still have the name. For a program that does not read
    TrainingArguments, a misspelled name is `inert`: dsconfig does not use its value.

    In the YAML file of another trainer, a removed name is `deprecated`, because that trainer may
    use an earlier transformers. In YAML, `1e-4` (without a decimal point) is a string:
    HfArgumentParser keeps it, while scripts that pass the YAML values on as command-line arguments
    (such as TRL's) convert it to a number.

    with: runtime="transformers", training_args={"warmup_ratio": 0.1}, gpus=1
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    with: runtime="transformers", training_args={"warmup_steps": 0.1}, gpus=1
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    """
    training = config.facts.training
    if training is None:
        return
    holder, program = config.document.container, config.facts.passed_on_by
    is_embedded = bool(holder) and not is_accelerate_config(holder)
    is_embedded = program != TRAINER if program else is_embedded
    release = _release_used(config.facts)
    own = dialects.dialect(program).launch.get("own_arguments", ()) if program else ()
    for name in (training.arguments.keys() & FORMER.keys()).difference(own):
        if Version.parse(release) < Version.parse(REMOVED[name]):
            continue
        consequence = (
            "the trainer may use an earlier release"
            if is_embedded
            else "transformers raises an error"
        )
        yield config.argument_finding(
            name,
            f" is not a TrainingArgument of transformers {release} "
            f"(removed in {REMOVED[name]}): {consequence}",
            FORMER[name],
            effect=Effect.DEPRECATED if is_embedded else None,
        )
    for suffix in ("", "_full_eval"):
        if all(training.arguments.get(dtype + suffix) is True for dtype in ("fp16", "bf16")):
            problem = f" and bf16{suffix} are both true: transformers raises a ValueError"
            yield config.argument_finding(f"fp16{suffix}", problem, "set one of them to false")
    given = training.arguments
    if given.get("save_only_model") is True and given.get("load_best_model_at_end") is True:
        yield config.argument_finding(
            "load_best_model_at_end",
            " and save_only_model are both true: with DeepSpeed, transformers raises a ValueError",
            "set one of them to false",
        )
    if given.get("fsdp"):
        yield config.argument_finding(
            "fsdp",
            " is set together with DeepSpeed: transformers raises a ValueError",
            "delete fsdp, or train without this config",
        )
    if is_embedded:
        return
    yield from _unknown(config, training.arguments)
    yield from _strings(config)


def _release_used(facts: Facts) -> str:
    """Return the release of transformers: as specified, that of the program which is launched, or
    the newest supported."""
    release = facts.releases.get("transformers", "")
    if not release and facts.passed_on_by:
        program = dialects.dialect(facts.passed_on_by)
        release = program.base_release(facts.releases.get(program.package) or program.newest)
    return release or Transformers.release


def _unknown(config: Context, arguments: Mapping[str, object]) -> Iterator[Finding]:
    """Yield misspelled names, or one note if some may be fields of the script's own class."""
    unknown = list(unknown_arguments(arguments))
    if not unknown:
        return
    is_read = any(map(reads_training_arguments, config.runtimes))
    for name, closest in (misspelled := misspelled_arguments(arguments)).items():
        consequence = "transformers raises an error" if is_read else "its value is ignored"
        yield config.argument_finding(
            name,
            f" is not a TrainingArgument: {consequence}",
            f'did you mean "{closest}"?',
            effect=None if is_read else Effect.INERT,
        )._replace(applies_to=None if is_read else every_program)
    if misspelled:
        return
    others = "".join(f", {name}" for name in unknown[1:MOST_NAMED])
    more = f" and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
    yield config.argument_finding(
        unknown[0],
        f"{others}{more}: not TrainingArguments; transformers raises an error unless the "
        "script's own class defines them",
        "delete them unless the script defines them",
        effect=Effect.NOTE,
    )


def _strings(config: Context) -> Iterator[Finding]:
    """Yield numbers in a YAML file that PyYAML, which follows YAML 1.1, reads as strings."""
    file = config.facts.origins.get("training", "")
    if not file.endswith((".yaml", ".yml")):
        return
    for name, text in yaml_text.texts_for_numbers(file).items():
        if name in TAKEN and name in NUMBERS:
            yield config.argument_finding(
                name,
                f" is the string {text!r} in YAML 1.1, and HfArgumentParser does not convert it: "
                "the optimizer raises an error",
                f"write {yaml_text.as_number(text)}",
                effect=Effect.NOTE,
            )
