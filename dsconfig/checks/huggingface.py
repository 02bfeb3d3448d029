"""Rules for what transformers and accelerate do with the config before DeepSpeed reads it."""

from collections.abc import Iterator
from functools import partial

from dsconfig.checks.context import Context
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import Finding
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Effect
from dsconfig.runtimes.base import Runtime
from dsconfig.schema.paths import ROOT, ZERO
from dsconfig.source.plugin_settings import SETTING_OF_KEY

with lazy_imports():
    from dsconfig.checks import agreement
    from dsconfig.source import strict


def _reads_strict_json(runtime: Runtime) -> bool:
    return not runtime.reads_hjson


def _wants_zero(runtime: Runtime) -> bool:
    return runtime.requires_zero_block


@rule(
    "DSC701", Effect.REFUSED, also=(Effect.NOTE,), applies_to=_reads_strict_json, on_templates=True
)
def not_strict_json(config: Context) -> Iterator[Finding]:
    """Config is not strict JSON

    transformers and accelerate read strict JSON and reject comments, unquoted keys, missing or
    trailing commas and a byte order mark. DeepSpeed reads HJSON.

    with: runtime="transformers"
    bad: {"train_batch_size": 8,}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    """
    json_error = config.document.json_error
    if json_error is None or config.document.is_broken:
        return
    alone = all(_reads_strict_json(runtime) for runtime in config.runtimes)
    yield Finding(
        path=ROOT,
        message=f"{json_error.message} is not valid JSON: transformers and accelerate reject the "
        "config",
        help=strict.convert_help(config.document.name),
        effect=None if alone else Effect.NOTE,
        fix=strict.strict_fix(config.document) if alone else None,
        range=json_error.range,
    )


@rule(
    "DSC702", Effect.REFUSED, also=(Effect.NOTE,), applies_to=_wants_zero, stops="engine ValueError"
)
def zero_block_missing(config: Context) -> Iterator[Finding]:
    """accelerate requires a `zero_optimization` block

    This includes the transformers Trainer, which uses accelerate. `"stage": 0` is sufficient.

    with: runtime="accelerate"
    bad: {"train_batch_size": 8}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    """
    if config.has("zero_optimization"):
        return
    alone = all(_wants_zero(runtime) for runtime in config.runtimes)
    unknown = (key for key in config.as_written if config.is_unknown(ROOT / key))
    misspelled = next((key for key in unknown if config.closest(key, ZERO)), None)
    yield Finding(
        path=ROOT,
        message="zero_optimization is missing: accelerate fails before training",
        help='add "zero_optimization": {"stage": 0} if the file is for accelerate'
        if misspelled is None
        else f'rename "{misspelled}" to "zero_optimization"',
        effect=None if alone else Effect.NOTE,
    )


@rule("DSC703", Effect.REFUSED, also=(Effect.ALTERED, Effect.INERT), stops="engine ValueError")
def conflicting_sources(config: Context) -> Iterator[Finding]:
    """Conflicting settings in the config, TrainingArguments and accelerate config

    transformers compares most of them and raises an error. Otherwise the program silently uses one
    of the values: `inert` if it is the config's, `altered` if it is another one or depends on the
    program. TrainingArguments are set by `--training-args`.

    with: runtime="transformers", training_args={"max_grad_norm": 1.0}, gpus=1
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "gradient_clipping": 0.5}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}
    """
    facts = config.facts
    if facts.training is None and not facts.launch:
        return
    if facts.passed_on_by and agreement.builds_its_config(facts.passed_on_by):
        return  # from the same options

    runtime, *others = config.runtimes
    follows = partial(agreement.followed_source, runtime=runtime)
    for found in agreement.disagreements(config.as_written, facts):
        if (
            config.document.is_generated
            and found.left is None
            and found.right.file == agreement.LAUNCH
        ):
            continue  # the config was generated from it
        effect = agreement.effect_of(found, config.runtimes)
        consequence = agreement.DEPENDS if others else follows(found)
        if effect is Effect.REFUSED:
            consequence = "transformers raises a ValueError before training"
        yield Finding(
            path=found.path,
            message=agreement.describe(
                config.document.name, found, config.as_written, facts, consequence
            ),
            help=_delete_setting(found)
            if config.document.is_generated and found.left is None
            else agreement.help_for(found, config.as_written, config.runtimes),
            effect=effect,
        )


def _delete_setting(found: "agreement.Disagreement") -> str:
    """Return the help for a setting of accelerate's YAML: without it, the argument decides."""
    setting = SETTING_OF_KEY.get(found.path.name, found.path.name)
    return f"delete {setting} from the accelerate config to use {found.right.key}"
