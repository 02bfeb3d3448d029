"""The FLOPs profiler: what one forward costs, module by module, by torch's own counter."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


class FlopsProfile:
    """Counts the forward of one step and writes a table.

    ``settings`` is the whole block ``flops_profiler``: ``profile_step`` (1 is the first),
    ``module_depth`` (-1: all), ``top_modules`` per depth, ``detailed``, ``output_file``,
    ``recompute_fwd_factor``.
    """

    def __init__(self, settings: Mapping[str, Any], module: nn.Module) -> None:
        self._settings = settings
        self._module = module
        self._counter: FlopCounterMode | None = None
        self._seconds = 0.0

    def wants(self, step: int) -> bool:
        """Whether the forward of optimizer step ``step`` (from 1) is to be counted."""
        return step == self._settings["profile_step"] and self._counter is None

    @contextmanager
    def counting(self) -> Iterator[None]:
        self._counter = FlopCounterMode(display=False)
        _finish_device()
        started = time.perf_counter()
        try:
            with self._counter:
                yield
        finally:
            _finish_device()
            self._seconds = time.perf_counter() - started

    @property
    def flops(self) -> int:
        """What was counted: multiply-adds times two."""
        assert self._counter is not None
        return self._counter.get_total_flops()

    def report(self) -> str:
        """Return the table; FLOPs are multiply-adds times two, of one micro batch on one rank."""
        total = self.flops
        factor = 3.0 + self._settings["recompute_fwd_factor"]
        rate = total / self._seconds / 1e12 if self._seconds else 0.0
        parameters = sum(p.numel() for p in self._module.parameters())
        lines = [
            f"flops profile: forward {total:,} FLOPs, {self._seconds * 1e3:.1f} ms, "
            f"{rate:.3f} TFLOPS; forward and backward {total * factor:,.0f} FLOPs; "
            f"{parameters:,} parameter elements here",
        ]
        return "\n".join(lines + self._rows(total))

    def write(self) -> bool:
        """Write to ``output_file`` where one is named; return whether it was."""
        target = self._settings["output_file"]
        if not target:
            return False
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).write_text(self.report() + "\n")
        return True

    def _rows(self, total: int) -> list[str]:
        assert self._counter is not None
        if not self._settings["detailed"]:
            return []
        deepest, most = (int(self._settings[name]) for name in ("module_depth", "top_modules"))
        by_depth: dict[int, list[tuple[int, str]]] = {}
        for name, operations in self._counter.get_flop_counts().items():
            depth = 0 if name == "Global" else name.count(".") + 1
            if deepest < 0 or depth <= deepest:
                by_depth.setdefault(depth, []).append((sum(operations.values()), name))
        rows = []
        for depth in sorted(by_depth):
            chosen = sorted(by_depth[depth], reverse=True)
            for flops, name in chosen if most <= 1 else chosen[:most]:
                share = flops / total if total else 0.0
                rows.append(f"  {'  ' * depth}{name}: {flops:,} FLOPs ({share:.1%})")
        return rows


def _finish_device() -> None:
    """On a GPU a call returns when its work is queued, which says nothing of its time."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
