"""Deferred modules execute on first use."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from dsconfig.lazy_imports import lazy_imports
from suite.limits import scaled


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder that is part of the dsconfig package during a test."""
    import dsconfig

    monkeypatch.setattr(dsconfig, "__path__", [*dsconfig.__path__, str(tmp_path)])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("dsconfig.tried_")]:
        del sys.modules[name]


def test_module_executes_once_on_first_use(package: Path) -> None:
    (package / "tried_once.py").write_text("import sys\nsys.tried = getattr(sys, 'tried', 0) + 1\n")
    try:
        with lazy_imports():
            from dsconfig import tried_once
        assert not hasattr(sys, "tried")
        assert tried_once.sys is sys
        assert tried_once.sys.tried == 1
        assert type(tried_once) is ModuleType
    finally:
        del sys.tried  # pyright: ignore[reportAttributeAccessIssue]


def test_module_error_is_raised_on_use(package: Path) -> None:
    (package / "tried_fault.py").write_text("1 / 0\n")
    with lazy_imports():
        from dsconfig import tried_fault
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            _ = tried_fault.anything


def test_module_can_import_itself_while_executing(package: Path) -> None:
    (package / "tried_self.py").write_text(
        "a = 1\nfrom dsconfig import tried_self\nb = tried_self.a + 1\n"
    )
    with lazy_imports():
        from dsconfig import tried_self
    assert tried_self.b == 2


def test_threads_wait_for_a_complete_module(package: Path) -> None:
    (package / "tried_threads.py").write_text(
        f"import dsconfig\ndsconfig.tried_gate.wait({scaled(5)})\nlast = 'here'\n"
    )
    import dsconfig

    gate = threading.Event()
    dsconfig.tried_gate = gate  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with lazy_imports():
            from dsconfig import tried_threads
        seen: list[str] = []
        threads = [
            threading.Thread(target=lambda: seen.append(tried_threads.last)) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        gate.set()
        for thread in threads:
            thread.join()
        assert seen == ["here"] * 4
    finally:
        del dsconfig.tried_gate  # pyright: ignore[reportAttributeAccessIssue]


def test_other_packages_are_not_deferred() -> None:
    code = (
        "import sys\nfrom dsconfig.lazy_imports import lazy_imports\n"
        "with lazy_imports():\n    import colorsys\n"
        "assert 'rgb_to_hsv' in vars(colorsys)\nassert len(sys.meta_path) == before\n"
    )
    code = code.replace("from dsconfig", "before = len(sys.meta_path)\nfrom dsconfig", 1)
    subprocess.run([sys.executable, "-c", code], check=True)
