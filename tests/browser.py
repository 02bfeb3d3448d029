"""Headless Chromium for tests, and a server for what it opens."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

from suite.limits import scaled

BROWSER = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome", "headless_shell")
        if (path := shutil.which(name))
    ),
    None,
)
REASON = "no Chromium is installed"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a Playwright browser that reaches this machine only."""
    playwright = import_module("playwright.sync_api").sync_playwright
    blocked = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    with playwright() as started:
        options = {"executable_path": BROWSER, "args": ["--no-sandbox", blocked]}
        browser = started.chromium.launch(**options)
        try:
            yield browser
        finally:
            browser.close()


def milliseconds(seconds: float) -> float:
    """Return the scaled limit of a wait, for Playwright."""
    return 1000 * scaled(seconds)
