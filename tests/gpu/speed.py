"""Tokens per second beside plain PyTorch and DeepSpeed, compiled and not, and how much of the
card's peak that is."""

import importlib.util
from functools import partial
from typing import Any

import torch

from benchmarks.compiling import saying_what_compiles
from benchmarks.engine_modes import Workload
from gpu.cases import Row, rows
from gpu.setting import Setting
from training.ranks import Ranks

SECONDS = 600.0
"""What one mode may take: kernels and graphs are compiled in it."""


def speed(setting: Setting, seconds: float) -> list[Row]:
    """DeepSpeed last: what it changes in torch stays, so its ranks are its own."""
    there = [m for m in setting.modes if not m.startswith("deepspeed") or _is_installed()]
    found = []
    for foreign in (False, True):
        modes = [mode for mode in there if mode.startswith("deepspeed") is foreign]
        if modes:
            found += _measured(setting, modes, seconds / 2)
    return found


def _is_installed() -> bool:
    return importlib.util.find_spec("deepspeed") is not None


def _measured(setting: Setting, modes: list[str], seconds: float) -> list[Row]:
    running: list[Ranks] = []

    def measure(mode: str, compiled: bool) -> Row:
        if not running or running[-1].closed:
            running.append(Ranks(setting.cards, setting.device))
        request = {"mode": mode, "steps": setting.steps}
        work = setting.workload | {"compiled": compiled}
        with saying_what_compiles():
            answers = running[-1].run("gpu.speed:rate", seconds=SECONDS, workload=work, **request)
        result = dict(answers[0], bytes=max(each["bytes"] for each in answers))
        flops = result["tokens/s"] * Workload(**work).flops_per_token
        peak = setting.peak_tflops and setting.peak_tflops * 1e12 * setting.cards
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
    """Tokens per second over all ranks, and this rank's own peak; runs on every rank."""
    from benchmarks.engine import timed  # which puts its own folder first

    on_card, before = workload["device"] != "cpu", 0
    if on_card:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    tokens = timed(mode, steps, **workload)
    torch._dynamo.reset()
    held = torch.cuda.max_memory_allocated() - before if on_card else 0
    return {"tokens/s": tokens, "bytes": held}
