"""Whether host memory is pinned, and whether a tile travels while the next one is updated."""

from functools import partial
from time import perf_counter
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

import dsengine
from benchmarks.engine_modes import Workload
from dsengine.tiers import HostBinding
from gpu.cases import Row, rows
from gpu.setting import Setting
from training.ranks import SharedRanks

STEPS = 3


def copies(setting: Setting, seconds: float) -> list[Row]:
    shared = SharedRanks(setting.device)

    def measured(stage: int, pinned: bool) -> Row:
        settings = _config(stage, pinned, setting.tile_elements)
        job = {"config": settings, "workload": setting.workload}
        return shared(setting.cards).run("gpu.copies:step", **job)[0]

    try:
        cases = {
            f"stage {stage}, pin_memory {pinned}": partial(measured, stage, pinned)
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
    """Seconds of one step of the optimizer on the host, and of its copies; on every rank.

    ``hidden``: the share of the copies that ran while the host was updating.
    """
    work = Workload(**workload | {"micro_batch": 1})
    engine, *_ = dsengine.initialize(model=work.model(), config=config)
    batch = work.batch(seed=dist.get_rank())
    clock = _Clock(work.device)
    with clock.listening():
        for _ in range(STEPS):
            clock.forget()
            engine.backward(engine(batch))
            engine.step()
            clock.wait()
    binding = engine._binding
    result = {
        "tiles": len(binding.host_tiles),
        "parts pinned": _pinned(binding.shards.values()),
        "gradients pinned": _pinned(binding.offloaded_gradients._sums.values()),
        **clock.seconds(),
    }
    engine.destroy()
    return result


def _pinned(tensors: Any) -> str:
    held = [each for each in tensors if each.device.type == "cpu"]
    return f"{sum(torch.cuda.is_available() and each.is_pinned() for each in held)} of {len(held)}"


class _Clock:
    """Times updates on the host by its clock, and copies by events of the device's stream."""

    def __init__(self, device: str) -> None:
        self._on_card = device != "cpu"
        self.forget()

    def forget(self) -> None:
        self._updates: list[tuple[float, float]] = []
        self._copies: list[tuple[Any, Any]] = []
        self._began = self._ended = 0.0

    def listening(self) -> Any:
        """Have every tile noted while its binding updates it and sends it back."""
        update, copy_back = HostBinding._update, HostBinding._copy_back
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

        return mock.patch.multiple(HostBinding, _update=timed_update, _copy_back=timed_copy)

    def _mark(self) -> Any:
        if not self._on_card:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self) -> None:
        if self._on_card:
            torch.cuda.synchronize()
        self._ended = perf_counter()

    def seconds(self) -> dict[str, float]:
        """Of the last step."""
        whole = self._ended - self._began
        updating = sum(end - begin for begin, end in self._updates)
        copying = sum(self._between(*each) for each in self._copies)
        hidden = min(1.0, max(0.0, (updating + copying - whole) / copying)) if copying else 0.0
        return {"step": whole, "updating": updating, "copying": copying, "hidden": hidden}

    def _between(self, begin: Any, end: Any) -> float:
        return begin.elapsed_time(end) / 1000 if self._on_card else end - begin
