"""Run a script on the DeepSpeed that is installed, and tell who started it what becomes of it.

``dsconfig run --engine deepspeed`` starts its ranks so: ``python -m dsengine.with_deepspeed
train.py``. Nothing that the script does is changed; of each engine that ``deepspeed.initialize``
returns, rank 0 tells the steps with their losses, and in the end how much memory it has held.
"""

import functools
import importlib
import sys
import time
from typing import Any

import torch
from torch import Tensor

from dsengine.communication.ending import end_in_order
from dsengine.observation.events import (
    BETWEEN_STEPS,
    End,
    emit_failures,
    emit_from_rank_0,
    held_bytes,
)
from dsengine.programs import run_program


class _Steps:
    """The steps of one engine of DeepSpeed's, seen from outside."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._steps = 0
        """Since the last one that was told."""
        self._has_told = False
        self._since = time.perf_counter()
        self._losses: list[Tensor] = []
        self._backward, engine.backward = engine.backward, self.backward
        self._step, engine.step = engine.step, self.step
        emit_from_rank_0("engine")
        self._end = End(engine)

    def backward(self, *arguments: Any, **named: Any) -> Any:
        """What it returns is the share of one micro batch in the loss of its step."""
        result = self._backward(*arguments, **named)
        if isinstance(result, Tensor):
            self._losses.append(result.detach().float().mean())
        return result

    def step(self, *arguments: Any, **named: Any) -> Any:
        before = self._engine.global_steps  # a load sets it
        result = self._step(*arguments, **named)
        done, now = self._engine.global_steps, time.perf_counter()
        if done == before:  # within a window
            return result
        self._end.step = done
        self._steps += 1
        losses, self._losses = self._losses, []
        if not self._has_told or now - self._since > BETWEEN_STEPS:
            seconds = (now - self._since) / self._steps
            rates = self._engine.get_lr() if self._engine.optimizer is not None else []
            rate = float(rates[0]) if rates else None
            emit_from_rank_0(
                "step",
                step=done,
                seconds=seconds,
                loss=float(torch.stack(losses).sum()) if losses else None,
                lr=rate,
                memory=held_bytes(self._engine.device),
            )
            self._has_told, self._since, self._steps = True, now, 0
        return result


def watch() -> None:
    """From now on, tell of every engine that ``deepspeed.initialize`` returns."""
    end_in_order()
    deepspeed: Any = importlib.import_module("deepspeed")
    original = deepspeed.initialize

    @functools.wraps(original)
    def initialize(*arguments: Any, **named: Any) -> Any:
        made = original(*arguments, **named)
        _Steps(made[0])
        return made

    deepspeed.initialize = initialize
    emit_failures()


if __name__ == "__main__":
    watch()
    run_program(sys.argv[1:], "dsengine.with_deepspeed")
