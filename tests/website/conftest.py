"""The built site, shared by all tests of a run."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import browser

ROOT = Path(__file__).parents[2]
WORK = ROOT / "runs" / "site"


@pytest.fixture(scope="session")
def public() -> Path:
    """Return the folder of the site, built once without warnings by the first process of a run."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    built = WORK / "built"
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists() or built.read_text("utf-8") != run:
            command = [sys.executable, ROOT / "website" / "build_site.py"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "warning" not in done.stdout.lower(), done.stdout
            built.write_text(run, "utf-8")
    return WORK / "public"


@pytest.fixture(scope="module")
def site(public: Path) -> Iterator[str]:
    """Return the address at which the site is served."""
    with browser.served(public) as address:
        yield address


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.chromium() as opened:
        yield opened
