"""A run with random events that must not change its losses."""

import random
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import dsengine
from dsengine.checkpoints import CheckpointError
from training import models
from training.jobs import window
from training.recovery_jobs import FailingBlock, failing_evaluation, failing_pass

STEPS = 12
FILE_BYTES = 2000
"""Smaller than any weight file, to simulate a full disk."""


class Run:
    """An engine and its checkpoint folder; ``begin`` builds a new engine."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        self.config, self.folder, self.saved = config, folder, False
        self.begin()

    def begin(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        model = models.Tied()
        model.blocks[1] = FailingBlock(models.WIDTH)
        self.engine, *_ = dsengine.initialize(model=model, config=self.config)

    def batch(self, draw: random.Random) -> torch.Tensor:
        return models.batch(1000 + draw.randrange(100), 0, dist.get_rank())


def curve(config: dict[str, Any], folder: str, seed: int | None) -> list[float]:
    """Return losses of windows; with a seed, about two events happen before each."""
    run, draw = Run(config, Path(folder)), random.Random(seed)
    losses: list[float] = []
    for step in range(STEPS):
        while seed is not None and draw.random() < 2 / 3:
            event = draw.choice(EVENTS)
            print(f"before step {step}: {event.__name__}")
            event(run, draw)
        losses.append(window(run.engine, step))
    run.engine.destroy()
    return losses


def fail_forward(run: Run, draw: random.Random) -> None:
    failing_pass(run.engine, "forward", after=0)


def fail_backward(run: Run, draw: random.Random) -> None:
    """Fail within a window, which restarts."""
    failing_pass(run.engine, "backward", draw.randrange(run.engine.gradient_accumulation_steps()))


def fail_evaluation(run: Run, draw: random.Random) -> None:
    failing_evaluation(run.engine, run.batch(draw))


def evaluate(run: Run, draw: random.Random) -> None:
    run.engine.eval()
    with torch.no_grad():
        run.engine(run.batch(draw))
    run.engine.train()


def discard_loss(run: Run, draw: random.Random) -> None:
    run.engine(run.batch(draw))


def gather_weights(run: Run, draw: random.Random) -> None:
    parameters = list(run.engine.module.parameters())
    with suppress(KeyError), dsengine.zero.GatheredParameters(parameters):
        if draw.random() < 0.5:
            raise KeyError("of the script")


def delay_rank(run: Run, draw: random.Random) -> None:
    if dist.get_rank() == draw.randrange(dist.get_world_size()):
        time.sleep(0.05)


def save(run: Run, draw: random.Random) -> None:
    run.engine.save_checkpoint(str(run.folder))
    run.saved = True


def fail_save(run: Run, draw: random.Random) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if draw.randrange(dist.get_world_size()) == dist.get_rank():
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, limits[1]))
    try:
        run.engine.save_checkpoint(str(run.folder), tag="never")
    except CheckpointError:
        pass
    else:
        raise AssertionError("the save succeeded")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def fail_load(run: Run, draw: random.Random) -> None:
    with suppress(CheckpointError):
        run.engine.load_checkpoint(str(run.folder), tag="never")


def resume_from_checkpoint(run: Run, draw: random.Random) -> None:
    """Resume in the same engine, or in a new one with other weights."""
    save(run, draw)
    if draw.random() < 0.5:
        run.engine.destroy()
        run.begin(seed=draw.randrange(1, 100))
    run.engine.load_checkpoint(str(run.folder))


EVENTS: tuple[Callable[[Run, random.Random], None], ...] = (
    fail_forward,
    fail_backward,
    fail_evaluation,
    evaluate,
    discard_loss,
    gather_weights,
    delay_rank,
    save,
    fail_save,
    fail_load,
    resume_from_checkpoint,
)
