"""While DeepSpeed compiles its kernels, the benchmark says so."""

import os
from pathlib import Path

import pytest

from benchmarks.compiling import lines, report_compilation
from waiting import until


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    path = tmp_path / "py311_cpu" / "cpu_adam" / "lock"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_a_kernel_that_is_being_compiled_is_named(lock: Path) -> None:
    (line,) = lines(began=lock.stat().st_mtime - 60)
    assert line.startswith("DeepSpeed is compiling cpu_adam: minutes, on the first run (")
    lock.unlink()
    assert lines(began=0.0) == []


def test_a_lock_from_before_may_be_left_over(lock: Path) -> None:
    os.utime(lock, (1000.0, 1000.0))
    (line,) = lines(began=2000.0)
    assert line == f"waiting for cpu_adam: if no process is compiling it, delete {lock}"


def test_compilation_is_reported_during_the_run(
    lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed: list[str] = []

    def is_reported() -> bool:
        printed.append(capsys.readouterr().err)
        return any(printed)

    with report_compilation(every=0.01):
        until("a report", is_reported)
    first = "".join(printed)
    assert "DeepSpeed is compiling cpu_adam" in first or "waiting for cpu_adam" in first
