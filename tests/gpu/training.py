"""The engine trains on a card as it does on the host; then its own tests, on the card."""

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
"""What one file of tests may take."""
HOST = {"device": "cpu"}
TIERS: dict[str, dict[str, Any]] = {
    "": {},
    ", optimizer on the host": {"offload_optimizer": {**HOST, "pin_memory": True}},
    ", all on the host": {"offload_optimizer": HOST, "offload_param": HOST},
}


def training(setting: Setting, seconds: float) -> list[Row]:
    """Curves first, on as many cards as there are; whole files of tests with what time is left."""
    there, here = SharedRanks(setting.device), SharedRanks()
    try:
        curves = rows(_curves(setting, there, here), seconds / 3)
    finally:
        there.close()
        here.close()
    return curves + rows(_files(setting), seconds * 2 / 3)


def _curves(
    setting: Setting, there: SharedRanks, here: SharedRanks
) -> dict[str, Callable[[], Row]]:
    def gap(settings: dict[str, Any]) -> Row:
        request = {"config": settings, "steps": setting.steps}
        got = there(setting.cards).run("training.jobs:losses", **request)[0]
        expected = here(setting.cards).once("training.jobs:losses", **request)[0]
        gaps = [abs(a - b) / abs(b) for a, b in zip(got, expected, strict=True)]
        return {"largest gap": max(gaps), "first": got[0], "last": got[-1]}

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
    """How a run of pytest ended whose ranks are on the device."""
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
    wrong = [each for each in cases if each.find("failure") is not None or each.find("error")]
    skipped = sum(each.find("skipped") is not None for each in cases)
    return {
        "passed": len(cases) - len(wrong) - skipped,
        "skipped": skipped,
        "wrong": [each.attrib["name"] for each in wrong],
    }
