"""Rules for checkpoints and activation checkpointing."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import REJECTED, Finding, reaches_deepspeed
from dsconfig.report import Effect
from dsconfig.runtimes.base import RECOMPUTATION
from dsconfig.schema.paths import ACTIVATION_CHECKPOINTING, AIO, CHECKPOINT, ZERO


@rule("DSC901", Effect.INERT, triggers="activation_checkpointing", applies_to=reaches_deepspeed)
def contiguous_activations(config: Context) -> Iterator[Finding]:
    """`contiguous_memory_optimization` requires `partition_activations` and `number_checkpoints`

    Without them, `deepspeed.checkpointing.configure()` fails. If the script does not call it, the
    block has no effect.

    bad: {"train_batch_size": 8, "activation_checkpointing": {"contiguous_memory_optimization":
        true}}
    good: {"train_batch_size": 8, "activation_checkpointing": {"partition_activations": true,
        "contiguous_memory_optimization": true, "number_checkpoints": 24}}
    """
    block = ACTIVATION_CHECKPOINTING
    if not config.switch(*block, "contiguous_memory_optimization"):
        return
    missing = [
        name
        for name, is_set in (
            ("partition_activations", config.switch(*block, "partition_activations")),
            ("number_checkpoints", config.get(*block, "number_checkpoints") is not None),
        )
        if not is_set
    ]
    if missing:
        yield Finding(
            path=ACTIVATION_CHECKPOINTING / "contiguous_memory_optimization",
            message=f"contiguous_memory_optimization requires {' and '.join(missing)}: "
            "deepspeed.checkpointing.configure() fails; without that call the block has no effect",
            help='add "partition_activations": true and "number_checkpoints": <number of layers>',
        )


@refusal(
    "DSC902",
    triggers="zero_optimization.pipeline_loading_checkpoint",
    stops="checkpoint AssertionError",
    from_source="fails when a checkpoint is loaded",
)
def pipeline_loading_below_stage_3(config: Context) -> Iterator[Finding]:
    """`pipeline_loading_checkpoint` requires ZeRO stage 3

    At stages 1 and 2, loading a checkpoint fails.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "pipeline_loading_checkpoint":
        true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "pipeline_loading_checkpoint":
        true}}
    """
    if config.in_force(ZERO, "pipeline_loading_checkpoint") and config.stage in (1, 2):
        yield Finding(
            path=ZERO / "pipeline_loading_checkpoint",
            message=f"pipeline_loading_checkpoint requires ZeRO stage 3, not {config.stage}: "
            "DeepSpeed "
            "fails when it loads a checkpoint",
            help="delete it",
        )


@rule(
    "DSC905",
    Effect.NOTE,
    triggers="activation_checkpointing",
    applies_to=lambda runtime: not runtime.recomputes_from_config,
)
def recomputation_not_enabled(config: Context) -> Iterator[Finding]:
    """`activation_checkpointing` alone does not enable recomputation

    The block only configures `deepspeed.checkpointing`. DeepSpeed, transformers and accelerate
    recompute activations if the script or TrainingArguments enable it. dsengine recomputes if the
    block is present. Not reported if TrainingArguments (`--training-args`) enable
    `gradient_checkpointing`.

    bad: {"train_batch_size": 8, "activation_checkpointing": {"partition_activations": true}}
    good: {"train_batch_size": 8}
    """
    programs = [runtime for runtime in config.runtimes if not runtime.recomputes_from_config]
    is_enabled = config.facts.execution.get("gradient_checkpointing")
    if config.block(*ACTIVATION_CHECKPOINTING) and programs and not is_enabled:
        step = programs[0].set_elsewhere[RECOMPUTATION]
        yield Finding(
            path=ACTIVATION_CHECKPOINTING,
            message="activation_checkpointing alone does not enable recomputation",
            help=f"enable it with {step}, or delete the block",
            on_key=True,
        )


@rule("DSC903", Effect.NOTE, triggers="checkpoint")
def universal_without_zero(config: Context) -> Iterator[Finding]:
    """`load_universal` without ZeRO

    It reads converted checkpoints of ZeRO or pipeline runs; other runs have nothing to convert.

    bad: {"train_batch_size": 8, "checkpoint": {"load_universal": true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 1}, "checkpoint":
        {"load_universal": true}}
    """
    if config.switch("checkpoint", "load_universal") and config.stage == 0 and not config.bf16:
        yield Finding(
            path=CHECKPOINT / "load_universal",
            message="load_universal without ZeRO: only checkpoints written by "
            "ds_to_universal.py can be loaded",
            help="delete it, unless the checkpoint was converted",
        )


@refusal("DSC904", triggers="aio", stops="AssertionError")
def gds_not_on_device(config: Context) -> Iterator[Finding]:
    """`aio.use_gds` requires an NVIDIA GPU

    GPUDirect Storage reads bypass the CPU. The device is set by `--device`.

    with: device="cpu", gpus=8
    bad: {"train_batch_size": 8, "aio": {"use_gds": true}}
    good: {"train_batch_size": 8, "aio": {"use_gds": false}}
    """
    device = config.facts.device
    if config.switch("aio", "use_gds") and device is not None and device.kind != "cuda":
        yield Finding(
            path=AIO / "use_gds",
            message=f"use_gds requires an NVIDIA GPU, not {device.name}: {REJECTED}",
            help="delete it",
        )
