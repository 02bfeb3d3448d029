"""pytest hooks that run each test in its own process and append its outcome to a file.

``DEEPSPEED_TESTS_TOLD`` is the path of the file; tests with an outcome in it are not run again.
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
from suite.limits import scaled

OUTCOMES = Path(os.environ["DEEPSPEED_TESTS_TOLD"])
WORST = ("failed", "passed", "skipped")


def name_of(node: str) -> str:
    """Return a test's name without the leading folder unit/."""
    return node.removeprefix("unit/")


def known() -> set[str]:
    """Return the names of tests with an outcome in the file."""
    return {json.loads(line)["test"] for line in OUTCOMES.open()} if OUTCOMES.exists() else set()


def write_outcome(name: str, **fields: Any) -> None:
    with OUTCOMES.open("a") as file:
        file.write(json.dumps({"test": name, **fields}) + "\n")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write the outcome of a file that cannot be collected or skips all its tests."""
    if not report.passed and (name := name_of(report.nodeid)) not in known():
        kind = "Collection" if report.failed else "Skipped"
        failure = {"type": kind, "message": str(report.longrepr)[-3000:], "places": []}
        write_outcome(name, outcome=report.outcome, failure=failure)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool:
    name, started = name_of(item.nodeid), time.monotonic()
    if (process := os.fork()) == 0:
        os.setsid()
        outcome, failure = "failed", None
        try:
            outcome, failure = _outcome(item)
        finally:
            write_outcome(
                name, outcome=outcome, failure=failure, seconds=time.monotonic() - started
            )
            os._exit(0)
    while os.waitpid(process, os.WNOHANG)[0] == 0:
        if time.monotonic() - started > scaled(LIMIT + 10):
            os.killpg(process, signal.SIGKILL)
        time.sleep(0.02)
    _end_group(process)
    if name not in known():
        failure = {"type": "Died", "message": "the test's process died", "places": []}
        write_outcome(name, outcome="failed", failure=failure)
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
    outcome = next(kind for kind in WORST if kind in outcomes | {"passed"})
    if "skipped" in outcomes and outcome != "failed":
        why = next(str(report.longrepr) for report in reports if report.outcome == "skipped")
        return "skipped", {"type": "Skipped", "message": why[-500:], "places": []}
    return outcome, failure
