"""The FLOPs profiler: FLOPs of one forward by module, from torch's counter."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


class FlopsProfile:
    """Counts the FLOPs of one forward and writes a table.

    ``settings``: the ``flops_profiler`` block with ``profile_step`` (1 is the first),
    ``module_depth`` (-1: all), ``top_modules`` per depth, ``detailed``, ``output_file``,
    ``recompute_fwd_factor``.
    """

    def __init__(self, settings: Mapping[str, Any], module: nn.Module) -> None:
        self._settings = settings
        self._module = module
        self._counter: FlopCounterMode | None = None
        self._seconds = 0.0

    def is_due(self, step: int) -> bool:
        """Whether to profile the forward of optimizer step ``step`` (from 1)."""
        return step == self._settings["profile_step"] and self._counter is None

    @contextmanager
    def counting(self) -> Iterator[None]:
        self._counter = FlopCounterMode(display=False)
        _synchronize()
        started = time.perf_counter()
        try:
            with self._counter:
                yield
        finally:
            _synchronize()
            self._seconds = time.perf_counter() - started

    @property
    def flops(self) -> int:
        """Counted FLOPs (two per multiply-add)."""
        assert self._counter is not None
        return self._counter.get_total_flops()

    def report(self) -> str:
        """Return the table, for one micro batch on one rank."""
        total = self.flops
        factor = 3.0 + self._settings["recompute_fwd_factor"]
        rate = total / self._seconds / 1e12 if self._seconds else 0.0
        parameters = sum(p.numel() for p in self._module.parameters())
        lines = [
            f"flops profile: forward {total:,} FLOPs, {self._seconds * 1e3:.1f} ms, "
            f"{rate:.3f} TFLOPS; forward and backward {total * factor:,.0f} FLOPs; "
            f"{parameters:,} parameter elements on this rank",
        ]
        return "\n".join(lines + self._rows(total))

    def write(self) -> bool:
        """Write to ``output_file`` if it is set; return whether it is."""
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


def _synchronize() -> None:
    """Wait for queued GPU work, so that elapsed time includes it."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
