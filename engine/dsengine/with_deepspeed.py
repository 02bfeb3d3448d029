"""Run a script on the DeepSpeed that is installed, and tell who started it what becomes of it.

``dsconfig run --engine deepspeed`` starts its ranks so: ``python -m dsengine.with_deepspeed
train.py``. Nothing that the script does is changed; of each engine that ``deepspeed.initialize``
returns, rank 0 tells the steps, and in the end how much memory it has held.
"""

import functools
import importlib
import sys
import time
from typing import Any

from dsengine.communication.ending import end_in_order
from dsengine.observation.events import BETWEEN_STEPS, End, held_bytes, tell_failures, tell_first
from dsengine.programs import run_program


class _Steps:
    """The steps of one engine of DeepSpeed's, seen from outside."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._told = 0
        self._since = time.perf_counter()
        self._step = engine.step
        engine.step = self.step
        tell_first("engine")
        self._end = End(engine)

    def step(self, *arguments: Any, **named: Any) -> Any:
        result = self._step(*arguments, **named)
        self._end.step = done = self._engine.global_steps
        now = time.perf_counter()
        if done > self._told and (self._told == 0 or now - self._since > BETWEEN_STEPS):
            seconds = (now - self._since) / (done - self._told)
            rates = self._engine.get_lr() if self._engine.optimizer is not None else []
            rate = float(rates[0]) if rates else None
            tell_first(
                "step", step=done, seconds=seconds, lr=rate, memory=held_bytes(self._engine.device)
            )
            self._told, self._since = done, now
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
    tell_failures()


if __name__ == "__main__":
    watch()
    run_program(sys.argv[1:], "dsengine.with_deepspeed")
