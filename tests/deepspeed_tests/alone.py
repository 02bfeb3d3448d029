"""Parts of a plugin of pytest: each test in a process of its own, its outcome in a file.

``DEEPSPEED_TESTS_TOLD`` names the file, which may hold outcomes already: those tests are not run
again.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from deepspeed_tests.ranks import LIMIT, failure_of

TOLD = Path(os.environ["DEEPSPEED_TESTS_TOLD"])
WORST = ("failed", "passed", "skipped")


def name_of(node: str) -> str:
    """A test by its file, which DeepSpeed has below tests/unit."""
    return node.removeprefix("unit/")


def known() -> set[str]:
    """The names of those that the file tells of."""
    return {json.loads(line)["test"] for line in TOLD.open()} if TOLD.exists() else set()


def tell(name: str, **told: Any) -> None:
    with TOLD.open("a") as file:
        file.write(json.dumps({"test": name, **told}) + "\n")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Tell of a file that cannot be collected, or that skips all of its tests."""
    if not report.passed and (name := name_of(report.nodeid)) not in known():
        kind = "Collection" if report.failed else "Skipped"
        told = {"type": kind, "message": str(report.longrepr)[-3000:], "places": []}
        tell(name, outcome=report.outcome, failure=told)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool:
    name, begun = name_of(item.nodeid), time.monotonic()
    if (process := os.fork()) == 0:
        os.setsid()
        outcome, failure = "failed", None
        try:
            outcome, failure = _outcome(item)
        finally:
            tell(name, outcome=outcome, failure=failure, seconds=time.monotonic() - begun)
            os._exit(0)
    while os.waitpid(process, os.WNOHANG)[0] == 0:
        if time.monotonic() - begun > LIMIT + 10:
            os.killpg(process, signal.SIGKILL)
        time.sleep(0.02)
    _end_group(process)
    if name not in known():
        died = {"type": "Died", "message": "the test's process died", "places": []}
        tell(name, outcome="failed", failure=died)
    return True


def _end_group(process: int) -> None:
    try:
        os.killpg(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def _outcome(item: pytest.Item) -> tuple[str, dict[str, Any] | None]:
    failure: dict[str, Any] | None = None

    class Keeper:
        @staticmethod
        def pytest_exception_interact(call: pytest.CallInfo[None]) -> None:
            nonlocal failure
            if call.excinfo is not None:
                failure = failure_of(call.excinfo.value)

    item.config.pluginmanager.register(Keeper())
    reports = runtestprotocol(item, nextitem=None, log=True)
    outcomes = {report.outcome for report in reports}
    outcome = next(each for each in WORST if each in outcomes | {"passed"})
    if "skipped" in outcomes and outcome != "failed":
        why = next(str(each.longrepr) for each in reports if each.outcome == "skipped")
        return "skipped", {"type": "Skipped", "message": why[-500:], "places": []}
    return outcome, failure
