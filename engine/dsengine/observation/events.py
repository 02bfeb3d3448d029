"""Run events as JSON lines, appended to the file named by DSCONFIG_EVENTS.

`dsconfig run` sets the variable, reads the lines while the ranks train and displays them. Rank 0
writes events for the engine, for steps (at most one per second, because reading a loss synchronizes
the device) and for checkpoints; every rank writes its failure. Without the variable nothing is
written.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import finalize

import torch
import torch.distributed as dist
from torch import Tensor

from dsconfig import Plan, launch_env
from dsengine.communication.peers.errors import RankFailedError
from dsengine.communication.peers.message import cause_of
from dsengine.communication.peers.status import STATUS
from dsengine.observation.memory import peak_resident
from dsengine.optimizers.schedules.base import learning_rates

STEP_INTERVAL = 1.0
"""Minimum seconds between two step events."""


def emit(event: str, **fields: Any) -> None:
    """Append one line. Short lines appended by several processes do not interleave."""
    path = os.environ.get(launch_env.EVENTS)
    if path:
        line = json.dumps({"event": event, "rank": _rank(), **fields}) + "\n"
        with suppress(OSError), open(path, "a", encoding="utf-8") as file:  # noqa: PTH123
            file.write(line)


def emit_from_rank_0(event: str, **fields: Any) -> None:
    """Call ``emit`` on rank 0."""
    if _rank() == 0:
        emit(event, **fields)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))


class StepEvents:
    """Step events of one engine: loss, learning rate, tokens, time, memory."""

    @classmethod
    def of(
        cls, plan: Plan, device: torch.device, optimizer: Callable[[], Any]
    ) -> "StepEvents | None":
        """Return None if DSCONFIG_EVENTS is not set."""
        if not os.environ.get(launch_env.EVENTS):
            return None
        emit_failures()
        return cls(plan, device, optimizer) if _rank() == 0 else None

    def __init__(self, plan: Plan, device: torch.device, optimizer: Callable[[], Any]) -> None:
        self._ranks = plan.batch.data_parallel
        self._device = device
        self._optimizer = optimizer
        self._losses: list[Tensor] = []
        self._tokens: int | None = 0
        self._steps = 0
        self._since = time.perf_counter()
        emit("engine", estimated=plan.memory.get("peak_bytes"))
        self._end = EndEvent(self, device)

    def record_inputs(self, arguments: Any) -> None:
        """Count a training micro batch's tokens: the elements of the first 2-D integer tensor."""
        if not torch.is_grad_enabled():
            return
        for value in arguments:
            if isinstance(value, Tensor) and value.dim() == 2 and not value.is_floating_point():
                self._tokens = None if self._tokens is None else self._tokens + value.numel()
                return
        self._tokens = None

    def record_loss(self, loss: Tensor) -> None:
        """Record a micro batch's contribution to the loss of its step."""
        self._losses.append(loss.detach().float().mean())

    def discard_window(self) -> None:
        self._losses.clear()

    def boundary(self, step: int) -> None:
        self._steps += 1
        losses, self._losses = self._losses, []
        self._end.step, self._end.losses = step, losses
        if step > 1 and time.perf_counter() - self._since < STEP_INTERVAL:
            return
        rates = learning_rates(self._optimizer())
        loss = float(torch.stack(losses).sum()) if losses else None
        now = time.perf_counter()  # after reading the loss, which synchronizes the device
        # Count tokens once per data-parallel rank.
        tokens = None if self._tokens is None else self._tokens * self._ranks / (now - self._since)
        emit(
            "step",
            step=step,
            seconds=(now - self._since) / self._steps,
            tokens_per_second=tokens,
            memory=peak_bytes(self._device),
            loss=loss,
            lr=float(rates[0]) if rates else None,
        )
        self._since, self._steps, self._tokens = now, 0, 0

    def close(self) -> None:
        """Emit the end event, once."""
        self._end.emit()


class EndEvent:
    """The end event of an engine, emitted once: by ``emit``, on garbage collection or at exit."""

    def __init__(self, owner: object, device: torch.device | str) -> None:
        """``owner``: the object that is collected together with the engine."""
        self.step = 0
        self.losses: list[Tensor] = []
        """Of the micro batches of this step."""
        self._device = device
        self.emit = finalize(owner, self._emit)  # holds no reference to the owner

    def _emit(self) -> None:
        with suppress(Exception):  # the process may be exiting after a failure
            # After a failure the device may never finish the step that a loss waits for.
            known = bool(self.losses) and not hasattr(sys, "last_value")
            loss = float(torch.stack(self.losses).sum()) if known else None
            emit_from_rank_0("end", step=self.step, memory=peak_bytes(self._device), loss=loss)


def peak_bytes(device: torch.device | str) -> int:
    """Return peak bytes of this rank: allocated on its GPU, otherwise resident."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_resident()


def emit_failures() -> None:
    """Emit an event for an uncaught exception, with the phase in which it was raised."""
    previous = sys.excepthook
    if getattr(previous, "emits", False):
        return

    def hook(kind: Any, error: BaseException, traceback: Any) -> None:
        with suppress(Exception):
            cause = cause_of(error)
            phase = STATUS.failed_in if STATUS.cause == cause else ""
            follows = isinstance(error, RankFailedError)
            emit("failure", cause=cause, phase=phase or "the script", follows=follows)
        previous(kind, error, traceback)

    hook.emits = True  # type: ignore[attr-defined]
    sys.excepthook = hook
