"""Training progress: a bar on a terminal, lines in a log."""

import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from dsengine.loop.engine import Engine

LOG_LINES = 10
"""Lines printed per run if the output is not a terminal."""


class Progress:
    """Shows loss, learning rate and tokens per second on rank 0.

    Call ``update(loss)`` after every ``engine.step()``. The loss shown is the mean over this
    rank's micro batches of the last step.
    """

    def __init__(self, engine: "Engine", *, steps: int, tokens_per_step: int) -> None:
        self._engine = engine
        self._steps = steps
        self._tokens = tokens_per_step
        self._shows = not dist.is_initialized() or dist.get_rank() == 0
        self._bar: Any = None
        self._task: Any = None
        self._losses: list[Tensor] = []
        self._first_step = engine.global_steps
        self._started = time.perf_counter()

    def __enter__(self) -> "Progress":
        if self._shows:
            self._bar = _bar()
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("training", total=self._steps, status="")
        self._started = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, loss: Tensor) -> None:
        """Record one micro batch; redraw if it completed an optimizer step."""
        self._losses.append(loss.detach())
        done = self._engine.global_steps - self._first_step
        if self._engine.micro_steps % self._engine.gradient_accumulation_steps():
            return
        losses, self._losses = self._losses, []
        if not (self._shows and self._is_due(done)):
            return  # reading a loss synchronizes the device
        mean = float(torch.stack(losses).mean())
        rate = done * self._tokens / (time.perf_counter() - self._started)
        status = f"loss {mean:.4f}  lr {self._engine.get_lr()[0]:.2e}  {rate:,.0f} tokens/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, status=status)
        else:
            print(f"step {self._engine.global_steps}  {status}", flush=True)

    def _is_due(self, done: int) -> bool:
        interval = 1 if self._bar is not None else max(1, self._steps // LOG_LINES)
        return done in (1, self._steps) or done % interval == 0


def _bar() -> Any:
    """Return a rich progress bar, or None if the output is not a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    screen = Console()
    if not screen.is_terminal:
        return None
    return Progress(
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
        console=screen,
    )
