"""pytest hooks: time limits, repeats of unstable tests, and a report for the runner."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter

from suite import limits
from suite.results import Result

TRANSPORT = (
    r"Timeout \(>", "TimeoutError", "TimeoutExpired", "Connection reset", "Connection refused",
    "Connection closed by peer", "Broken pipe", "Address already in use",
)  # fmt: skip
"""Errors after which a test that starts processes runs once more, and is listed as unstable."""
PROCESSES = ("engine", "live", "browser", "long")
"""Marks of tests that start processes."""
LIMIT = pytest.StashKey[Any]()
KINDS = ("passed", "failed", "error", "skipped", "xfailed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--report", type=Path, help="write counts and unstable tests to this file")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.get_closest_marker(mark) for mark in PROCESSES):
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=list(TRANSPORT)))


_file: Path | None = None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Limit the time of a test by the load when its file began; sweeps have no limit."""
    global _file
    if item.path != _file:
        _file = item.path
        limits.measure()
    if not any(map(item.get_closest_marker, ("timeout", "deep"))):
        item.add_marker(pytest.mark.timeout(limits.scaled(limits.TEST_SECONDS)))
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    item.stash[LIMIT] = settings


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start the limit again for a test that is repeated, which is part of the same protocol."""
    if getattr(item, "execution_count", 1) > 1 and LIMIT in item.stash:
        item.ihook.pytest_timeout_cancel_timer(item=item)
        item.ihook.pytest_timeout_set_timer(item=item, settings=item.stash[LIMIT])


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    unstable = sorted({report.nodeid for report in terminalreporter.stats.get("rerun", [])})
    for name in unstable:
        terminalreporter.write_line(f"UNSTABLE {name}: repeated after a transport error or a limit")
    if path := config.getoption("--report"):
        reports = {kind: terminalreporter.stats.get(kind, []) for kind in KINDS}
        failures = [each.nodeid for each in reports["failed"] + reports["error"]]
        Result(
            name="",
            seconds=0.0,
            passed=len(reports["passed"]),
            failed=len(failures),
            skipped=len(reports["skipped"]) + len(reports["xfailed"]),
            failures=failures,
            unstable=unstable,
        ).write(path)
