"""A run to which one small thing after another happens, none of which may leave a trace."""

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
from training.recovery_jobs import Tired, failing_evaluation, failing_pass

STEPS = 12
FILE_BYTES = 2000
"""Less than any file of weights: how a full disk looks to who writes there."""


class Run:
    """An engine, and where it saves; ``begin`` builds both anew."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        self.config, self.folder, self.saved = config, folder, False
        self.begin()

    def begin(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        model = models.Tied()
        model.blocks[1] = Tired(models.WIDTH)
        self.engine, *_ = dsengine.initialize(model=model, config=self.config)

    def batch(self, draw: random.Random) -> torch.Tensor:
        return models.batch(1000 + draw.randrange(100), 0, dist.get_rank())


def curve(config: dict[str, Any], folder: str, seed: int | None) -> list[float]:
    """Losses of windows; with a seed, about two small things happen before each of them."""
    run, draw = Run(config, Path(folder)), random.Random(seed)
    losses: list[float] = []
    for step in range(STEPS):
        while seed is not None and draw.random() < 2 / 3:
            happening = draw.choice(HAPPENINGS)
            print(f"before step {step}: {happening.__name__}")
            happening(run, draw)
        losses.append(window(run.engine, step))
    run.engine.destroy()
    return losses


def a_forward_fails(run: Run, draw: random.Random) -> None:
    failing_pass(run.engine, "forward", after=0)


def a_backward_fails(run: Run, draw: random.Random) -> None:
    """In the midst of a window, which begins anew."""
    failing_pass(run.engine, "backward", draw.randrange(run.engine.gradient_accumulation_steps()))


def an_evaluation_fails(run: Run, draw: random.Random) -> None:
    failing_evaluation(run.engine, run.batch(draw))


def an_evaluation(run: Run, draw: random.Random) -> None:
    run.engine.eval()
    with torch.no_grad():
        run.engine(run.batch(draw))
    run.engine.train()


def a_loss_is_never_learnt_from(run: Run, draw: random.Random) -> None:
    run.engine(run.batch(draw))


def gathered_weights_are_looked_at(run: Run, draw: random.Random) -> None:
    parameters = list(run.engine.module.parameters())
    with suppress(KeyError), dsengine.zero.GatheredParameters(parameters):
        if draw.random() < 0.5:
            raise KeyError("of the script")


def a_rank_dawdles(run: Run, draw: random.Random) -> None:
    if dist.get_rank() == draw.randrange(dist.get_world_size()):
        time.sleep(0.05)


def a_save(run: Run, draw: random.Random) -> None:
    run.engine.save_checkpoint(str(run.folder))
    run.saved = True


def a_save_fails(run: Run, draw: random.Random) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if draw.randrange(dist.get_world_size()) == dist.get_rank():
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, limits[1]))
    try:
        run.engine.save_checkpoint(str(run.folder), tag="never")
    except CheckpointError:
        pass
    else:
        raise AssertionError("it was saved")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def a_load_is_refused(run: Run, draw: random.Random) -> None:
    with suppress(CheckpointError):
        run.engine.load_checkpoint(str(run.folder), tag="never")


def it_goes_on_from_a_checkpoint(run: Run, draw: random.Random) -> None:
    """In the same engine, or in one made anew, from other weights."""
    a_save(run, draw)
    if draw.random() < 0.5:
        run.engine.destroy()
        run.begin(seed=draw.randrange(1, 100))
    run.engine.load_checkpoint(str(run.folder))


HAPPENINGS: tuple[Callable[[Run, random.Random], None], ...] = (
    a_forward_fails,
    a_backward_fails,
    an_evaluation_fails,
    an_evaluation,
    a_loss_is_never_learnt_from,
    gathered_weights_are_looked_at,
    a_rank_dawdles,
    a_save,
    a_save_fails,
    a_load_is_refused,
    it_goes_on_from_a_checkpoint,
)
