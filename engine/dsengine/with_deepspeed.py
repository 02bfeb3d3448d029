"""Run a script on the installed DeepSpeed and report its progress as events.

``dsconfig run --engine deepspeed`` starts ranks with ``python -m dsengine.with_deepspeed
train.py``. The script itself runs unchanged. For each engine that ``deepspeed.initialize``
returns, rank 0 reports steps with their losses, and peak memory at the end.
"""

import functools
import importlib
import sys
import time
from typing import Any

import torch
from torch import Tensor

from dsengine.communication.exit_watch import watch_exit
from dsengine.communication.gloo_exit import wait_for_gloo_at_exit
from dsengine.observation.events import (
    STEP_INTERVAL,
    EndEvent,
    emit_failures,
    emit_from_rank_0,
    peak_bytes,
)
from dsengine.programs import run_program
from dsengine.startup import MODE, REQUIRED, is_replaced, is_required


class _Steps:
    """Wraps one DeepSpeed engine to report its steps."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._steps = 0
        """Since the last reported step."""
        self._has_reported = False
        self._since = time.perf_counter()
        self._losses: list[Tensor] = []
        self._backward, engine.backward = engine.backward, self.backward
        self._step, engine.step = engine.step, self.step
        emit_from_rank_0("engine")
        self._end = EndEvent(engine, engine.device)

    def backward(self, *arguments: Any, **named: Any) -> Any:
        """Run backward; its result is this micro batch's share of the step's loss."""
        result = self._backward(*arguments, **named)
        if isinstance(result, Tensor):
            self._losses.append(result.detach().float().mean())
        return result

    def step(self, *arguments: Any, **named: Any) -> Any:
        before = self._engine.global_steps  # loading a checkpoint changes it
        result = self._step(*arguments, **named)
        done, now = self._engine.global_steps, time.perf_counter()
        if done == before:  # not at a gradient accumulation boundary
            return result
        self._steps += 1
        losses, self._losses = self._losses, []
        self._end.step, self._end.losses = done, losses
        if not self._has_reported or now - self._since > STEP_INTERVAL:
            seconds = (now - self._since) / self._steps
            rates = self._engine.get_lr() if self._engine.optimizer is not None else []
            rate = float(rates[0]) if rates else None
            emit_from_rank_0(
                "step",
                step=done,
                seconds=seconds,
                loss=float(torch.stack(losses).sum()) if losses else None,
                lr=rate,
                memory=peak_bytes(self._engine.device),
            )
            self._has_reported, self._since, self._steps = True, now, 0
        return result


def watch() -> None:
    """Report on every engine that ``deepspeed.initialize`` returns from now on.

    Exits if dsengine replaces DeepSpeed here, or must.
    """
    if is_required():
        raise SystemExit(
            "dsengine: error: the run requires the installed DeepSpeed (--engine deepspeed), but "
            f"{MODE}={REQUIRED} excludes it: unset {MODE}"
        )
    wait_for_gloo_at_exit()
    watch_exit()
    deepspeed: Any = importlib.import_module("deepspeed")
    if is_replaced():
        raise SystemExit(
            "dsengine: error: the run requires the installed DeepSpeed (--engine deepspeed), but "
            "was started with dsengine in its place: start it without `dsengine`"
        )
    original = deepspeed.initialize

    @functools.wraps(original)
    def initialize(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        _Steps(result[0])
        return result

    deepspeed.initialize = initialize
    emit_failures()


if __name__ == "__main__":
    watch()
    run_program(sys.argv[1:], "dsengine.with_deepspeed")
