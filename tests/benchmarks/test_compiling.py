"""While DeepSpeed compiles its kernels, the benchmark says so."""

import os
import time
from pathlib import Path

import pytest

from benchmarks.compiling import lines, report_compilation


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    path = tmp_path / "py311_cpu" / "cpu_adam" / "lock"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_a_kernel_that_is_being_compiled_is_named(lock: Path) -> None:
    assert lines(began=time.time() - 60) == [
        "DeepSpeed is compiling cpu_adam: minutes, on the first run (0 s so far)"
    ]
    lock.unlink()
    assert lines(began=0.0) == []


def test_a_lock_from_before_may_be_left_over(lock: Path) -> None:
    os.utime(lock, (1000.0, 1000.0))
    (line,) = lines(began=time.time())
    assert line == f"waiting for cpu_adam: if no process is compiling it, delete {lock}"


def test_compilation_is_reported_during_the_run(
    lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = ""
    with report_compilation(every=0.01):
        end = time.time() + 10
        while time.time() < end and not (printed := capsys.readouterr().err):
            time.sleep(0.01)
    assert "DeepSpeed is compiling cpu_adam" in printed or "waiting for cpu_adam" in printed
