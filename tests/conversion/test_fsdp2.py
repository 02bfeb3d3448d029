"""``dsconfig convert --to fsdp2``: the module runs and trains as dsengine does."""

from typing import Any

import pytest

import dsconfig
from conversion import corpus
from dsconfig import Effective, Facts
from dsconfig.conversion import fsdp2
from dsconfig.runtimes.effective import Tier, effective
from training.ranks import Ranks

STEPS = 6
COUNT = 5
REPORTS = ("tensorboard", "csv_monitor", "wandb", "comet", "flops_profiler")
"""Blocks that write files."""


def test_every_module_of_the_corpus_is_imported() -> None:
    for file, settings, _ in corpus.resolved():
        module: dict[str, Any] = {"__name__": "converted"}
        exec(compile(fsdp2.module(settings, file), file, "exec"), module)
        assert callable(module["step"])
    assert len(corpus.resolved()) > 200


def trained_configs() -> list[tuple[str, dict[str, Any]]]:
    """Return configs with different stages, precisions, schedules and offload."""
    chosen: dict[object, tuple[str, dict[str, Any]]] = {}
    for file, settings, _ in corpus.resolved():
        optimizer, zero = settings.optimizer, settings.zero
        if optimizer is None or fsdp2.torch_optimizer(optimizer.type, optimizer.params) is None:
            continue
        if Tier.NVME in (zero.optimizer_tier, zero.parameter_tier):
            continue
        if zero.quantized_weights or zero.quantized_gradients:
            continue  # not converted, so other values are exchanged
        schedule = settings.scheduler.type if settings.scheduler else None
        if schedule not in (None, *fsdp2.SCHEDULES):
            continue
        offloads = zero.optimizer_tier is Tier.HOST
        if dsconfig.validate(on_two_ranks(settings), runtime="dsengine").refusals:
            continue
        key = zero.stage, settings.numerics.precision, schedule, offloads
        chosen.setdefault(key, (file, on_two_ranks(settings)))
    return list(chosen.values())


def on_two_ranks(settings: Effective) -> dict[str, Any]:
    """Return the config with the batch of the test models."""
    batch = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1}
    config = {**settings.config, **batch}
    for name in ("train_batch_size", *REPORTS):
        config.pop(name, None)
    return config


@pytest.mark.engine
@pytest.mark.parametrize("most", [COUNT, pytest.param(None, marks=pytest.mark.long)])
def test_converted_modules_train_as_dsengine(ours: Ranks, most: int | None) -> None:
    different: dict[str, Any] = {}
    trained = 0
    for file, config in trained_configs()[:most]:
        text = fsdp2.module(effective(config, Facts(world_size=2)), file)
        expected = ours.run("training.jobs:losses", config=config, steps=STEPS)[0]
        found = ours.run("training.conversion_jobs:losses", text=text, steps=STEPS)[0]
        trained += 1
        if found != pytest.approx(expected, rel=1e-5):
            different[file] = expected, found
    assert different == {} and trained >= COUNT
