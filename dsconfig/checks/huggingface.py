"""Rules for what transformers and accelerate do with the config before DeepSpeed reads it."""

from collections.abc import Iterator
from functools import partial

from dsconfig.checks.context import Context
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import Finding, Phase, fills_auto
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Effect
from dsconfig.runtimes.base import Runtime
from dsconfig.source.pointer import copied

with lazy_imports():
    from dsconfig.checks import agreement, refusals
    from dsconfig.facts import yaml_text
    from dsconfig.runtimes import replay as replays
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
        path=(),
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
    yield Finding(
        path=(),
        message="zero_optimization is missing: accelerate fails before training",
        help='add "zero_optimization": {"stage": 0} if the file is for accelerate',
        effect=None if alone else Effect.NOTE,
    )


@rule("DSC703", Effect.REFUSED, also=(Effect.ALTERED, Effect.INERT), stops="engine ValueError")
def conflicting_sources(config: Context) -> Iterator[Finding]:
    """Conflicting settings in the config, TrainingArguments and accelerate config

    transformers compares most of them and raises an error. Otherwise the program silently uses one
    of the values: `inert` if it is the config's, `altered` if it is another one or depends on the
    program. TrainingArguments are set by `--training-args`.

    with: runtime="transformers", training_args={"max_grad_norm": 1.0}, world_size=1
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "gradient_clipping": 0.5}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}
    """
    facts = config.facts
    if facts.training is None and not facts.launch:
        return

    runtime, *others = config.runtimes
    follows = partial(agreement.followed_source, runtime=runtime)
    for found in agreement.disagreements(config.config, facts):
        if (
            config.document.is_generated
            and found.left is None
            and found.right.file == agreement.LAUNCH
        ):
            continue  # the config was generated from it
        effect = agreement.effect_of(found, config.runtimes)
        consequence = agreement.DEPENDS if others else follows(found)
        if effect is Effect.REFUSED:
            consequence = "transformers raises an error before training"
        yield Finding(
            path=tuple(found.path.split(".")),
            message=agreement.describe(
                config.document.name, found, config.config, facts, consequence
            ),
            help=agreement.help_for(found, config.config, config.runtimes),
            effect=effect,
        )


@rule("DSC704", Effect.REFUSED, applies_to=fills_auto, last=True, stops="engine")
def integration_error(config: Context) -> Iterator[Finding]:
    """transformers or accelerate raises an error

    The program cannot handle a value, or a value of the run differs, and no other rule reports it.
    Checked by replaying how one program processes the config, if its TrainingArguments
    (`--training-args`) or the accelerate config are known. Without the number of GPUs, the Trainer
    compares everything but `train_batch_size`. Conflicts between an accelerate config
    and the config that it names are reported at the keys of the former.

    with: runtime="transformers", training_args={"per_device_train_batch_size": 8}, world_size=1
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW",
        "params": {"lr": 0.001}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW",
        "params": {"lr": "auto"}}}
    """
    (runtime, *others), training = config.runtimes, config.facts.training
    if others or not fills_auto(runtime) or training is None:
        return
    try:
        replay = refusals.replayed(config.document, copied(config.config), config.facts, runtime)
        failure = replay.failure or replay.failure_after
    except replays.MissingFact:
        replay = replays.Replay(copied(config.config))
        failure = agreement.failed_comparison(replay, config.facts, runtime)
    if failure is None:
        return
    yield from _launch_conflicts(config, runtime.name, failure)
    if config.is_refused or failure.launch_keys:
        return
    program = "DeepSpeed" if failure is replay.failure_after else runtime.name
    for path, own in failure.by_path().items():
        yield Finding(
            path=tuple(path.split(".")) if path else (),
            message=f"{program} {own}",
            help=failure.help,
            phase=None if failure.late else Phase.PARSE,
        )


def _launch_conflicts(
    config: Context, program: str, failure: "replays.Failure"
) -> Iterator[Finding]:
    """Yield a finding at each key of the accelerate config that causes an error."""
    file = config.facts.origins.get(agreement.LAUNCH)
    for key in failure.launch_keys:
        yield Finding(
            path=tuple(key.split(".")),
            message=f"{program} {failure}",
            help=agreement.launch_help(failure, config.document.name),
            phase=None if failure.late else Phase.PARSE,
            file=file,
            range=yaml_text.key_range(file, key) if file else None,
            in_other_file=file is None,
        )
