"""Rules for monitors, checkpoint writers and timers."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import Finding, reaches_deepspeed
from dsconfig.report import Effect
from dsconfig.schema.paths import ROOT

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "comet": "comet_ml"}


@rule("DSC921", Effect.NOTE, triggers="tensorboard wandb comet")
def monitor_package(config: Context) -> Iterator[Finding]:
    """Monitor requires a package

    Without it, engine initialization fails.

    bad: {"train_batch_size": 8, "wandb": {"enabled": true}}
    good: {"train_batch_size": 8, "csv_monitor": {"enabled": true}}
    """
    for block, package in PACKAGES.items():
        if config.is_on(ROOT / block, "enabled"):
            yield Finding(
                path=ROOT / block / "enabled",
                message=f"{block} requires the package {package} on every node",
                help=f"pip install {package}",
            )


@rule("DSC922", Effect.INERT, triggers="datastates_ckpt", applies_to=reaches_deepspeed)
def datastates_block(config: Context) -> Iterator[Finding]:
    """`datastates_ckpt` enables the DataStates checkpoint engine by its presence

    Any value except false enables it. It requires the package datastates; without it, DeepSpeed
    logs an error and writes checkpoints with torch.save.

    bad: {"train_batch_size": 8, "datastates_ckpt": {}}
    good: {"train_batch_size": 8}
    """
    if config.get("datastates_ckpt") is not False:
        yield Finding(
            path=ROOT / "datastates_ckpt",
            message="datastates_ckpt is enabled by its presence: without the package datastates it "
            "has no effect, and checkpoints are written with torch.save",
            help="delete it, or set it to false",
            on_key=True,
        )


@rule("DSC923", Effect.COSTLY, triggers="wall_clock_breakdown memory_breakdown")
def profiler_on(config: Context) -> Iterator[Finding]:
    """Timers synchronize with the device

    `wall_clock_breakdown` and `memory_breakdown` slow training down.

    bad: {"train_batch_size": 8, "wall_clock_breakdown": true}
    good: {"train_batch_size": 8, "wall_clock_breakdown": false}
    """
    for name in ("wall_clock_breakdown", "memory_breakdown"):
        if config.get(name) is True:
            yield Finding(
                path=ROOT / name,
                message=f"{name} synchronizes with the device at every timer: training is slower",
                help="disable it after profiling",
            )
