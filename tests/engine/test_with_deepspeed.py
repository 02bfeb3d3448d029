"""What is told of an engine of DeepSpeed's."""

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
def a_clock_of_two_seconds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each look at it comes two seconds after the last."""
    looks = count()
    clock = SimpleNamespace(perf_counter=lambda: 2.0 * next(looks))
    monkeypatch.setattr(with_deepspeed, "time", clock)
    yield


@pytest.mark.usefixtures("a_clock_of_two_seconds")
def test_a_load_between_two_steps_is_not_told_as_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = tmp_path / "events"
    monkeypatch.setenv(launch_env.EVENTS, str(events))
    engine = Theirs()
    steps = _Steps(engine)
    for loaded in (1000, 500):  # later than where it was, and earlier
        engine.global_steps = loaded
        for _ in range(4):
            engine.backward(torch.tensor(0.5))
            engine.step()
    steps._end.emit()
    told = [json.loads(line) for line in events.read_text().splitlines()]
    seen = [(each["step"], each["seconds"], each["loss"]) for each in told[1:-1]]
    assert seen == [(step, 4.0, 1.0) for step in (1001, 1002, 501, 502)]
