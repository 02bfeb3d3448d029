"""Events of a DeepSpeed engine."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dsconfig import launch_env
from dsengine import with_deepspeed
from dsengine.with_deepspeed import _Steps


class Theirs(nn.Module):
    """Windows of two micro batches."""

    def __init__(self) -> None:
        super().__init__()
        self.global_steps, self._micro_steps = 0, 0
        self.device, self.optimizer = torch.device("cpu"), None

    def backward(self, loss: torch.Tensor) -> torch.Tensor:
        return loss

    def step(self) -> None:
        self._micro_steps += 1
        self.global_steps += self._micro_steps % 2 == 0


@pytest.fixture
def two_second_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A clock that advances two seconds per reading."""
    readings = count()
    clock = SimpleNamespace(perf_counter=lambda: 2.0 * next(readings))
    monkeypatch.setattr(with_deepspeed, "time", clock)
    yield


@pytest.mark.usefixtures("two_second_clock")
def test_checkpoint_load_is_not_counted_as_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = tmp_path / "events"
    monkeypatch.setenv(launch_env.EVENTS, str(events))
    engine = Theirs()
    steps = _Steps(engine)
    for loaded in (1000, 500):  # after the current step, and before it
        engine.global_steps = loaded
        for _ in range(4):
            engine.backward(torch.tensor(0.5))
            engine.step()
    steps._end.emit()
    result = [json.loads(line) for line in events.read_text().splitlines()]
    seen = [(each["step"], each["seconds"], each["loss"]) for each in result[1:-1]]
    assert seen == [(step, 4.0, 1.0) for step in (1001, 1002, 501, 502)]
