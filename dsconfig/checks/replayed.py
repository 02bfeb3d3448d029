"""Rules about what transformers and accelerate make of the config, found by replaying them."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import (
    Finding,
    Phase,
    fills_auto,
    fills_auto_for_script,
    reads_training_arguments,
)
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Effect
from dsconfig.schema.paths import KeyPath
from dsconfig.source.pointer import copied

with lazy_imports():
    from dsconfig.checks import agreement, refusals
    from dsconfig.facts import yaml_text
    from dsconfig.runtimes import replay as replays


def _replay(config: Context) -> "replays.Replay | None":
    """Return what transformers or accelerate makes of the config; None if another program, or more
    than one, reads it, or if a fact is missing."""
    if not config.replays:
        config.replays.append(_replayed(config))
    return config.replays[0]


def _replayed(config: Context) -> "replays.Replay | None":
    runtime, *others = config.runtimes
    if others or not fills_auto(runtime):
        return None
    try:
        values = copied(config.as_written)
        return refusals.replayed(config.document, values, config.facts, runtime)
    except replays.MissingFact:
        return None


@rule("DSC704", Effect.REFUSED, applies_to=fills_auto, last=True, stops="engine")
def integration_error(config: Context) -> Iterator[Finding]:
    """transformers or accelerate raises an error

    The program cannot handle a value, or a value of the run differs, and no other rule reports it.
    Checked by replaying how one program processes the config and passes it to DeepSpeed. Without
    the number of GPUs, the Trainer compares everything but `train_batch_size`. Conflicts between
    an accelerate config and the config that it names are reported at the keys of the former.

    with: runtime="transformers", training_args={"per_device_train_batch_size": 8}, gpus=1
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW",
        "params": {"lr": 0.001}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW",
        "params": {"lr": "auto"}}}
    """
    (runtime, *others), replay = config.runtimes, _replay(config)
    if others or not fills_auto(runtime):
        return
    if replay is None:
        failure = agreement.failed_comparison(config.as_written, config.facts, runtime)
    else:
        failure = replay.failure or replay.failure_after
    if failure is None:
        return
    yield from _launch_conflicts(config, runtime.name, failure)
    is_deepspeed = replay is not None and failure is replay.failure_after
    if failure.launch_keys or (config.is_refused and not failure.parts):
        return
    program = "DeepSpeed" if is_deepspeed else runtime.name
    for path, own in failure.by_path().items():
        if path.pointer in config.refused:
            continue  # another rule reports it
        yield Finding(
            path=path,
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
            path=KeyPath.parse(key),
            message=f"{program} {failure}",
            help=agreement.launch_help(failure, config.document.name),
            phase=None if failure.late else Phase.PARSE,
            file=file,
            range=yaml_text.key_range(file, key) if file else None,
            in_other_file=file is None,
        )


def _remarks(config: Context, code: str) -> Iterator[Finding]:
    """Yield what the program does without an error and users do not expect, by code."""
    replay = _replay(config)
    for remark in replay.remarks if replay is not None else ():
        if remark.code == code:
            yield Finding(remark.path, remark.message, remark.help)


@rule("DSC752", Effect.ALTERED, triggers="scheduler", applies_to=fills_auto_for_script)
def total_steps_divided(config: Context) -> Iterator[Finding]:
    """accelerate divides the total steps of a schedule, but not its warmup

    It divides `total_num_steps` by the number of processes, so the warmup takes a larger fraction
    of the run than requested.

    with: runtime="accelerate", gpus=8, total_steps=1000
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "scheduler": {"type":
        "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_num_steps": 10}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "scheduler": {"type":
        "WarmupDecayLR", "params": {"total_num_steps": 1000, "warmup_num_steps": 10}}}
    """
    yield from _remarks(config, "DSC752")


@rule("DSC716", Effect.ALTERED, triggers="fp16 bf16", applies_to=reads_training_arguments)
def launched_precision_lost(config: Context) -> Iterator[Finding]:
    """TrainingArguments turn the precision of accelerate's launcher off

    They decide an "auto" of the config that they name. `accelerate launch --mixed_precision bf16`
    without `--bf16` then trains in the dtype in which the model is loaded.

    with: name="train.sh", runtime="transformers"
    bad:
        cat > ds.json <<END
        {"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"},
         "zero_optimization": {"stage": 2}}
        END
        accelerate launch --mixed_precision bf16 --num_processes 2 train.py --deepspeed ds.json \\
            --per_device_train_batch_size 1 --learning_rate 1e-5
    with: name="train.sh", runtime="transformers"
    good:
        cat > ds.json <<END
        {"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"},
         "zero_optimization": {"stage": 2}}
        END
        accelerate launch --mixed_precision bf16 --num_processes 2 train.py --deepspeed ds.json \\
            --per_device_train_batch_size 1 --learning_rate 1e-5 --bf16
    """
    yield from _remarks(config, "DSC716")


@rule("DSC753", Effect.ALTERED, triggers="fp16 bf16", applies_to=fills_auto_for_script)
def precision_switched_off(config: Context) -> Iterator[Finding]:
    """The config disables the half precision that mixed_precision requests

    The config takes precedence: the model trains in fp32, slower and with more memory.

    with: runtime="accelerate", gpus=8, precision="bf16"
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "bf16": {"enabled": false}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}
    """
    yield from _remarks(config, "DSC753")


@rule("DSC754", Effect.ALTERED, applies_to=reads_training_arguments)
def trainer_dtype_split(config: Context) -> Iterator[Finding]:
    """No block for the half precision of TrainingArguments

    The Trainer records fp32 before accelerate adds the block, so floating-point inputs reach the
    half-precision model in fp32. Under `accelerate launch` with an accelerate config the block is
    added first.

    with: runtime="transformers", gpus=8, precision="bf16"
    bad: {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}
    good: {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}, "bf16":
        {"enabled": "auto"}}
    """
    yield from _remarks(config, "DSC754")


@rule("DSC755", Effect.ALTERED, applies_to=reads_training_arguments)
def clipping_not_carried(config: Context) -> Iterator[Finding]:
    """max_grad_norm without `gradient_clipping` in the config

    max_grad_norm reaches DeepSpeed only through `gradient_clipping`. Without that key DeepSpeed
    uses its own default: 1.0 since 0.19.3, no clipping before.

    with: runtime="transformers", gpus=1, training_args={"max_grad_norm": 0.5}
    bad: {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}
    good: {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2},
        "gradient_clipping": "auto"}
    """
    yield from _remarks(config, "DSC755")


@rule("DSC756", Effect.ALTERED, applies_to=fills_auto)
def accumulation_overruled(config: Context) -> Iterator[Finding]:
    """Batch values of the run that differ from those DeepSpeed receives

    The accumulation steps of the run are overruled by the config, which changes the global batch.
    Or accelerate uses the smallest batch size of all data loaders passed to prepare as the micro
    batch, even if it is that of the evaluation loader.

    with: runtime="accelerate", gpus=8, accumulation=4
    bad: {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 2}}
    good: {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": "auto",
        "zero_optimization": {"stage": 2}}
    """
    yield from _remarks(config, "DSC756")
