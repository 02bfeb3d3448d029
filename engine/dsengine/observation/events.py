"""What happens in a run, told to who started it: lines of JSON in the file DSCONFIG_EVENTS names.

`dsconfig run` sets the variable, reads the lines while the ranks train, and shows them. Rank 0
tells of the engine, of steps (at most one a second: to read a loss is to wait for the device) and
of checkpoints; every rank tells how it failed. Without the variable nothing is done.
"""

import json
import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import finalize

import torch
import torch.distributed as dist
from torch import Tensor

from dsconfig import launch_env
from dsengine.communication.peers.errors import RankFailedError
from dsengine.communication.peers.message import cause_of
from dsengine.communication.peers.status import STATUS
from dsengine.observation.memory import peak_resident

if TYPE_CHECKING:
    from dsengine.loop.engine import Engine

BETWEEN_STEPS = 1.0
"""Seconds between two steps that are told."""


def emit(event: str, **fields: Any) -> None:
    """Append one line. Short lines of several processes do not mix in a file opened to append."""
    path = os.environ.get(launch_env.EVENTS)
    if path:
        line = json.dumps({"event": event, "rank": _rank(), **fields}) + "\n"
        with suppress(OSError), open(path, "a", encoding="utf-8") as file:  # noqa: PTH123
            file.write(line)


def emit_from_rank_0(event: str, **fields: Any) -> None:
    """The same on rank 0 alone."""
    if _rank() == 0:
        emit(event, **fields)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))


class StepEvents:
    """The steps of one engine as they are told: loss, rate, tokens, time, memory."""

    @classmethod
    def of(cls, engine: "Engine") -> "StepEvents | None":
        """None where nobody listens."""
        if not os.environ.get(launch_env.EVENTS):
            return None
        emit_failures()
        return cls(engine) if _rank() == 0 else None

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._losses: list[Tensor] = []
        self._tokens: int | None = 0
        self._steps = 0
        self._since = time.perf_counter()
        emit("engine", estimated=engine.plan.memory.get("peak_bytes"))
        self._end = End(engine)

    def takes(self, arguments: Any) -> None:
        """Count the tokens of a micro batch to learn from: the first matrix of whole numbers."""
        if not torch.is_grad_enabled():
            return
        for each in arguments:
            if isinstance(each, Tensor) and each.dim() == 2 and not each.is_floating_point():
                self._tokens = None if self._tokens is None else self._tokens + each.numel()
                return
        self._tokens = None

    def saw(self, loss: Tensor) -> None:
        """Note the share of one micro batch in the loss of its step."""
        self._losses.append(loss.detach().float().mean())

    def forget_window(self) -> None:
        self._losses.clear()

    def boundary(self) -> None:
        self._steps += 1
        self._end.step = self._engine.global_steps
        losses, self._losses = self._losses, []
        if self._engine.global_steps > 1 and time.perf_counter() - self._since < BETWEEN_STEPS:
            return
        rates = self._engine.get_lr()
        loss = float(torch.stack(losses).sum()) if losses else None
        now = time.perf_counter()  # the loss is read: the device has done its work
        # Ranks that share a sample count its tokens once.
        ranks = self._engine.plan.batch.data_parallel
        tokens = None if self._tokens is None else self._tokens * ranks / (now - self._since)
        emit(
            "step",
            step=self._engine.global_steps,
            seconds=(now - self._since) / self._steps,
            tokens_per_second=tokens,
            memory=held_bytes(self._engine.device),
            loss=loss,
            lr=float(rates[0]) if rates else None,
        )
        self._since, self._steps, self._tokens = now, 0, 0

    def close(self) -> None:
        """Tell of the end, once."""
        self._end.emit()


class End:
    """The end of an engine, told once: by ``emit``, when nothing holds it any more, or at exit."""

    def __init__(self, engine: Any) -> None:
        self.step = 0
        self._device = engine.device
        self.emit = finalize(engine, self._tell)  # which keeps no engine

    def _tell(self) -> None:
        with suppress(Exception):  # the process may be ending because of a failure
            emit_from_rank_0("end", step=self.step, memory=held_bytes(self._device))


def held_bytes(device: torch.device | str) -> int:
    """The most that this rank has held: allocated on its GPU, else resident (bytes)."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_resident()


def emit_failures() -> None:
    """Have an exception that ends the process told, with the phase it was in."""
    previous = sys.excepthook
    if getattr(previous, "tells", False):
        return

    def hook(kind: Any, error: BaseException, traceback: Any) -> None:
        with suppress(Exception):
            cause = cause_of(error)
            phase = STATUS.failed_in if STATUS.cause == cause else ""
            follows = isinstance(error, RankFailedError)
            emit("failure", cause=cause, phase=phase or "the script", follows=follows)
        previous(kind, error, traceback)

    hook.tells = True  # type: ignore[attr-defined]
    sys.excepthook = hook
