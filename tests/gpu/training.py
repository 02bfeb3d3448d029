"""Compare training on a GPU with training on the host, and run the engine's tests on the GPU."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

from gpu.cases import Row, rows
from gpu.setting import Setting
from training.jobs import config
from training.ranks import SharedRanks

ROOT = Path(__file__).parents[2]
SECONDS = 240.0
"""Seconds per test file."""
HOST = {"device": "cpu"}
TIERS: dict[str, dict[str, Any]] = {
    "": {},
    ", optimizer on the host": {"offload_optimizer": {**HOST, "pin_memory": True}},
    ", all on the host": {"offload_optimizer": HOST, "offload_param": HOST},
}


def training(setting: Setting, seconds: float) -> list[Row]:
    """Compare losses on all GPUs first, then run test files in the remaining time."""
    on_device, on_host = SharedRanks(setting.device), SharedRanks()
    try:
        curves = rows(_curves(setting, on_device, on_host), seconds / 3)
    finally:
        on_device.close()
        on_host.close()
    return curves + rows(_files(setting), seconds * 2 / 3)


def _curves(
    setting: Setting, on_device: SharedRanks, on_host: SharedRanks
) -> dict[str, Callable[[], Row]]:
    def gap(settings: dict[str, Any]) -> Row:
        request = {"config": settings, "steps": setting.steps}
        got = on_device(setting.gpus).run("training.jobs:losses", **request)[0]
        expected = on_host(setting.gpus).once("training.jobs:losses", **request)[0]
        differences = [abs(a - b) / abs(b) for a, b in zip(got, expected, strict=True)]
        return {"largest gap": max(differences), "first": got[0], "last": got[-1]}

    return {
        f"stage {stage}, {precision}{tier}": partial(gap, _settings(stage, precision, zero))
        for precision in setting.precisions
        for stage in setting.stages
        for tier, zero in TIERS.items()
        if (stage > 0 or not zero) and (stage == 3 or "offload_param" not in zero)
    }


def _settings(stage: int, precision: str, zero: dict[str, Any]) -> dict[str, Any]:
    block = {} if precision == "fp32" else {precision: {"enabled": True}}
    return config(stage, 2, zero=zero, **block)


def _files(setting: Setting) -> dict[str, Callable[[], Row]]:
    return {name: partial(_tested, setting, arguments) for name, arguments in setting.tests.items()}


def _tested(setting: Setting, arguments: tuple[str, ...]) -> Row:
    """Run pytest with its ranks on the device; return the outcome."""
    with TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments),
                *("-m", "engine and not live and not deep", f"--junitxml={report}"),
            ],
            cwd=ROOT,
            env=os.environ | {"RANKS_DEVICE": setting.device},
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        return _counted(ElementTree.parse(report))


def _counted(report: Any) -> Row:
    cases = list(report.iter("testcase"))
    wrong = [case for case in cases if case.find("failure") is not None or case.find("error")]
    skipped = sum(case.find("skipped") is not None for case in cases)
    return {
        "passed": len(cases) - len(wrong) - skipped,
        "skipped": skipped,
        "wrong": [case.attrib["name"] for case in wrong],
    }
