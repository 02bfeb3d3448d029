"""Measure pinned host memory and the overlap of copies with updates."""

from functools import partial
from time import perf_counter
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

import dsengine
from benchmarks.engine_modes import Workload
from dsengine.tiers import OffloadedBinding
from gpu.cases import Row, rows
from gpu.setting import Setting
from training.ranks import SharedRanks

STEPS = 3


def copies(setting: Setting, seconds: float) -> list[Row]:
    shared = SharedRanks(setting.device)

    def measure(stage: int, pinned: bool) -> Row:
        settings = _config(stage, pinned, setting.tile_elements)
        ranks = shared(setting.gpus)
        return ranks.run("gpu.copies:step", config=settings, workload=setting.workload)[0]

    try:
        cases = {
            f"stage {stage}, pin_memory {pinned}": partial(measure, stage, pinned)
            for stage in setting.stages
            if stage > 0
            for pinned in (True, False)
        }
        return rows(cases, seconds)
    finally:
        shared.close()


def _config(stage: int, pinned: bool, tile_elements: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {
            "stage": stage,
            "sub_group_size": tile_elements,
            "offload_optimizer": {"device": "cpu", "pin_memory": pinned},
        },
    }


def step(config: dict[str, Any], workload: dict[str, Any]) -> Row:
    """Return seconds of one offloaded optimizer step and its copies; runs on every rank.

    ``hidden``: the share of the copies that overlaps host updates.
    """
    work = Workload(**{**workload, "micro_batch": 1})
    engine, *_ = dsengine.initialize(model=work.model(), config=config)
    batch = work.batch(seed=dist.get_rank())
    clock = _Clock(work.device)
    with clock.recording():
        for _ in range(STEPS):
            clock.reset()
            engine.backward(engine(batch))
            engine.step()
            clock.wait()
    binding = engine.binding
    assert isinstance(binding, OffloadedBinding)
    result = {
        "tiles": len(binding.host_tiles),
        "parts pinned": _pinned(binding.shards.values()),
        "gradients pinned": _pinned(binding.offloaded_gradients._sums.values()),
        **clock.seconds(),
    }
    engine.destroy()
    return result


def _pinned(tensors: Any) -> str:
    on_host = [tensor for tensor in tensors if tensor.device.type == "cpu"]
    pinned = sum(torch.cuda.is_available() and tensor.is_pinned() for tensor in on_host)
    return f"{pinned} of {len(on_host)}"


class _Clock:
    """Times host updates by the CPU clock, and copies by events on the device's stream."""

    def __init__(self, device: str) -> None:
        self._on_gpu = device != "cpu"
        self.reset()

    def reset(self) -> None:
        self._updates: list[tuple[float, float]] = []
        self._copies: list[tuple[Any, Any]] = []
        self._began = self._ended = 0.0

    def recording(self) -> Any:
        """Record the update and the copy of every tile."""
        update, copy_back = OffloadedBinding._update, OffloadedBinding._copy_back
        clock = self

        def timed_update(binding: Any, tile: Any) -> None:
            begin = perf_counter()
            clock._began = clock._began or begin
            update(binding, tile)
            clock._updates.append((begin, perf_counter()))

        def timed_copy(binding: Any, tile: Any) -> None:
            begin = clock._mark()
            copy_back(binding, tile)
            clock._copies.append((begin, clock._mark()))

        return mock.patch.multiple(OffloadedBinding, _update=timed_update, _copy_back=timed_copy)

    def _mark(self) -> Any:
        if not self._on_gpu:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()
        self._ended = perf_counter()

    def seconds(self) -> dict[str, float]:
        """Return the times of the last step."""
        total = self._ended - self._began
        updating = sum(end - begin for begin, end in self._updates)
        copying = sum(self._between(*pair) for pair in self._copies)
        hidden = min(1.0, max(0.0, (updating + copying - total) / copying)) if copying else 0.0
        return {"step": total, "updating": updating, "copying": copying, "hidden": hidden}

    def _between(self, begin: Any, end: Any) -> float:
        return begin.elapsed_time(end) / 1000 if self._on_gpu else end - begin
