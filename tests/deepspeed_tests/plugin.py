"""A plugin of pytest for DeepSpeed's tests: each in a process of its own, its outcome in a file.

``DEEPSPEED_TESTS`` names the package that is their ``deepspeed``, ``DEEPSPEED_TESTS_TOLD`` the
file, which may hold outcomes already: those tests are not run again.
"""

import json
import os
import signal
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

if os.environ["DEEPSPEED_TESTS"] == "dsengine":
    import dsengine.as_deepspeed  # noqa: F401
    from deepspeed_tests import placeholders

    placeholders.install()
else:
    placeholders = None
    from training.live_jobs import real_deepspeed

    real_deepspeed()

from deepspeed_tests.on_cpu import on_cpu
from deepspeed_tests.ranks import LIMIT, failure_of, launch

TOLD = Path(os.environ["DEEPSPEED_TESTS_TOLD"])
VARIANTS = int(os.environ.get("DEEPSPEED_TESTS_VARIANTS", "1"))
"""Of one test with parameters, so many are run, the last and others evenly before it."""
WORST = ("failed", "passed", "skipped")


def name_of(node: str) -> str:
    """A test without its parameters, below tests/unit."""
    return node.partition("[")[0].removeprefix("unit/")


def _tell(name: str, **told: Any) -> None:
    with TOLD.open("a") as file:
        file.write(json.dumps({"test": name, **told}) + "\n")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    from unit.common import DistributedExec  # type: ignore[import-not-found]

    on_cpu()
    DistributedExec._launch_procs = launch
    DistributedExec._close_pool = lambda *_, **__: None
    known = {json.loads(line)["test"] for line in TOLD.open()} if TOLD.exists() else set()
    variants: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        variants[name_of(item.nodeid)].append(item)
    kept: list[pytest.Item] = []
    for those in variants.values():
        count = min(VARIANTS, len(those))
        last = len(those) - 1
        chosen = {last - round(i * last / max(count - 1, 1)) for i in range(count)}
        kept += [those[i] for i in sorted(chosen)]
    items[:] = [item for item in kept if item.nodeid.removeprefix("unit/") not in known]


def pytest_collectstart() -> None:
    if placeholders is not None:
        placeholders.is_importing = True


def pytest_collection_finish() -> None:
    if placeholders is not None:
        placeholders.is_importing = False


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        told = {"type": "Collection", "message": str(report.longrepr)[-3000:], "places": []}
        _tell(report.nodeid.removeprefix("unit/"), outcome="failed", failure=told)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool:
    name, begun = item.nodeid.removeprefix("unit/"), time.monotonic()
    if (process := os.fork()) == 0:
        os.setsid()
        outcome, failure = "failed", None
        try:
            outcome, failure = _outcome(item)
        finally:
            _tell(name, outcome=outcome, failure=failure, seconds=time.monotonic() - begun)
            os._exit(0)
    while os.waitpid(process, os.WNOHANG)[0] == 0:
        if time.monotonic() - begun > LIMIT + 10:
            os.killpg(process, signal.SIGKILL)
        time.sleep(0.02)
    _end_group(process)
    if f'"test": {json.dumps(name)}' not in TOLD.read_text():
        died = {"type": "Died", "message": "the test's process died", "places": []}
        _tell(name, outcome="failed", failure=died)
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
