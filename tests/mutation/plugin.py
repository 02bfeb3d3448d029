"""pytest plugin: records durations, and runs chosen tests in a given order."""

import json
import os
from pathlib import Path

import pytest

SECONDS: dict[str, float] = {}
BROKEN: set[str] = set()


def pytest_runtest_setup() -> None:
    """Record coverage in child processes too."""
    if settings := os.environ.get("MUTATION_RC"):
        os.environ["COVERAGE_PROCESS_START"] = settings


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    SECONDS[report.nodeid] = SECONDS.get(report.nodeid, 0.0) + report.duration
    if not report.passed:
        BROKEN.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    where = os.environ.get("MUTATION_DURATIONS")
    if where and not hasattr(session.config, "workerinput"):
        passed = {test: time for test, time in SECONDS.items() if test not in BROKEN}
        Path(where).write_text(json.dumps(passed))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = os.environ.get("MUTATION_CHOSEN")
    if not chosen:
        return
    order = {test: index for index, test in enumerate(json.loads(Path(chosen).read_text()))}
    dropped = [item for item in items if item.nodeid not in order]
    items[:] = sorted(
        (item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid]
    )
    config.hook.pytest_deselected(items=dropped)
