"""Tokens per second compared with plain PyTorch and DeepSpeed, compiled and not, and MFU."""

import importlib.util
from functools import partial
from typing import Any

import torch

from benchmarks.compiling import report_compilation
from benchmarks.engine_modes import Workload
from gpu.cases import Row, rows
from gpu.setting import Setting
from training.ranks import Ranks

SECONDS = 600.0
"""Seconds per mode, including compilation of kernels and graphs."""


def speed(setting: Setting, seconds: float) -> list[Row]:
    """Measure all modes; DeepSpeed last and in its own ranks, because it changes global state."""
    modes = [m for m in setting.modes if not m.startswith("deepspeed") or _is_installed()]
    results = []
    for foreign in (False, True):
        chosen = [mode for mode in modes if mode.startswith("deepspeed") is foreign]
        if chosen:
            results += _measured(setting, chosen, seconds / 2)
    return results


def _is_installed() -> bool:
    return importlib.util.find_spec("deepspeed") is not None


def _measured(setting: Setting, modes: list[str], seconds: float) -> list[Row]:
    running: list[Ranks] = []

    def measure(mode: str, compiled: bool) -> Row:
        if not running or running[-1].closed:
            running.append(Ranks(setting.gpus, setting.device))
        request = {"mode": mode, "steps": setting.steps}
        work = {**setting.workload, "compiled": compiled}
        with report_compilation():
            answers = running[-1].run("gpu.speed:rate", seconds=SECONDS, workload=work, **request)
        result = dict(answers[0], bytes=max(answer["bytes"] for answer in answers))
        flops = result["tokens/s"] * Workload(**work).flops_per_token
        peak = setting.peak_tflops and setting.peak_tflops * 1e12 * setting.gpus
        return result | {"MFU": flops / peak if peak else None}

    cases: dict[str, Any] = {
        f"{mode}{', compiled' if compiled else ''}": partial(measure, mode, compiled)
        for compiled in setting.compiled
        for mode in modes
    }
    try:
        return rows(cases, seconds)
    finally:
        for ranks in running:
            ranks.close()


def rate(mode: str, steps: int, workload: dict[str, Any]) -> Row:
    """Return tokens per second over all ranks and this rank's peak bytes; runs on every rank."""
    from benchmarks.engine import timed  # it changes sys.path

    on_gpu, before = workload["device"] != "cpu", 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    tokens = timed(mode, steps, **workload)
    torch._dynamo.reset()
    peak = torch.cuda.max_memory_allocated() - before if on_gpu else 0
    return {"tokens/s": tokens, "bytes": peak}
