"""Terminal output of ``dsconfig run``: steps, status, summary and failures."""

import json
import re
import signal
import subprocess
import sys
from itertools import count, pairwise
from pathlib import Path
from unittest.mock import patch

import pytest

from dsconfig.commands import run_display
from dsconfig.commands.run_display import Expected, RunDisplay, clock, step_text, summary
from narrowing import not_none

STEP = {"event": "step", "rank": 0, "step": 1, "seconds": 0.5, "loss": 2.302585, "lr": 1e-4}
STEP |= {"tokens_per_second": 12345.6, "memory": 3 << 30}
END = {"event": "end", "rank": 0, "step": 20, "memory": 3 << 30}
FAILED = {"event": "failure", "rank": 1, "phase": "backward() of step 7", "follows": False}
FAILED |= {"cause": "ValueError: the data are broken"}
FOLLOWS = {"event": "failure", "rank": 0, "phase": "", "cause": "rank 1 is gone", "follows": True}
TRACE = """[rank0]: Traceback (most recent call last):
[rank0]:   File "x.py", line 1, in <module>
[rank0]: RankFailedError: rank 1 is gone

[rank1]: Traceback (most recent call last):
[rank1]: ValueError: the data are broken
"""


def follow(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    events: tuple[dict[str, object], ...] = (),
    *,
    script: str = "",
    expected: Expected | None = None,
    received: tuple[signal.Signals, ...] = (),
    ends_after: tuple[str, int] = ("", 1),
) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of a job with these events.

    Its standard input ends after so many messages with the text ``ends_after``.
    """
    path, log = tmp_path / "events.jsonl", tmp_path / "run.log"
    path.write_text("".join(json.dumps(each) + "\n" for each in events))
    pipe = subprocess.PIPE
    job = subprocess.Popen(
        [sys.executable, "-u", "-c", script], stdin=pipe, stdout=pipe, stderr=pipe
    )
    display = RunDisplay(job, path, log, expected or Expected(ranks=2))
    (text, number), shown_before = ends_after, display._message
    messages: list[str] = []

    def show(message: str) -> None:
        shown_before(message)
        messages.extend([message] * (text in message))
        if len(messages) == number:
            not_none(job.stdin).close()

    with patch.object(display, "_message", show):
        code = display.follow(received)
    shown = capfd.readouterr()
    return code, shown.out, " ".join(shown.err.split())


def test_output_passes_through_and_summary_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    saved = {"event": "checkpoint", "rank": 0, "path": "out/global_step20"}
    script = "import sys; print('from a rank'); print('to stderr', file=sys.stderr)"
    expected = Expected(ranks=2, peak_bytes=2 << 30)
    code, out, err = follow(tmp_path, capfd, (STEP, saved, END), script=script, expected=expected)
    assert (code, out) == (0, "from a rank\n") and "to stderr" in err
    assert (
        "20 steps in 0:00, loss 2.3026 at step 1;" in err
        and "peak 3.0 GiB allocated on rank 0" in err
    )
    assert "estimated 2.0 GiB; checkpoint: out/global_step20" in err
    assert not (tmp_path / "run.log").exists()


def test_failure_report_precedes_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = f"import sys; sys.stderr.write({TRACE!r}); sys.exit(1)"
    code, _, err = follow(tmp_path, capfd, (FOLLOWS, FAILED), script=script)
    assert code == 1
    report, traceback = err.index("rank 1 failed in backward() of step 7: ValueError"), "[rank1]:"
    assert report < err.index(traceback) and "[rank0]:" not in err
    assert str(tmp_path / "run.log") in err
    assert "[rank0]:" in (tmp_path / "run.log").read_text()


def test_signal_is_not_reported_as_failure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_display, "TICK", 0.01)
    monkeypatch.setattr(run_display, "LOG_INTERVAL", 0.0)
    interrupted: dict[str, object] = {**FAILED, "cause": "KeyboardInterrupt"}
    _, _, err = follow(
        *(tmp_path, capfd, (STEP, interrupted)),
        script="import sys; sys.stdin.read(); sys.exit(1)",
        received=(signal.SIGINT,),
        ends_after=("SIGINT received", 1),
    )
    assert "SIGINT received, stopping all ranks; repeat the signal to kill them" in err
    assert "failed" not in err and "stopped by SIGINT after step 1" in err


@pytest.mark.parametrize(
    ("events", "script", "expected_text"),
    [
        ((FOLLOWS,), "", "rank 1 was killed by SIGKILL; rank 0 reports: rank 1 is gone"),
        ((), "import nothing_of_that_name", "before the engine was built: ModuleNotFoundError"),
        ((), "", "rank 1 was killed by SIGKILL"),
    ],
)
def test_launcher_reports_killed_rank(
    events: tuple[dict[str, object], ...],
    script: str,
    expected_text: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    ended = {"event": "ended", "rank": 0, "of": 1, "how": "was killed by SIGKILL"}
    all_events = (*events, ended)
    code, _, err = follow(tmp_path, capfd, all_events, script=script or "raise SystemExit(1)")
    assert code == 1 and expected_text in err


def test_launcher_exit_code_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = follow(tmp_path, capfd, script="raise SystemExit(5)")
    assert code == 5 and "the launcher exited with code 5" in err


def test_harmless_traceback_and_status_are_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_display, "LOG_INTERVAL", 0.0)
    monkeypatch.setattr(run_display, "TRACEBACK_DELAY", 0.0)
    monkeypatch.setattr(run_display, "TICK", 0.01)
    script = (
        "import logging, sys\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: logging.exception('caught')\n"
        "sys.stderr.write('without an end')\n"
        "sys.stdin.read()"
    )
    code, _, err = follow(tmp_path, capfd, script=script, ends_after=("starting 2 ranks", 1))
    assert code == 0 and "starting 2 ranks" in err
    assert "ZeroDivisionError: division by zero" in err and "without an end" in err


def test_waiting_is_not_repeated_every_few_seconds(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = count()
    monkeypatch.setattr(run_display.time, "monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr(run_display, "TICK", 0.001)
    script = "import sys; sys.stdin.read()"
    _, _, err = follow(tmp_path, capfd, script=script, ends_after=("starting 2 ranks", 4))
    waited = [int(found[1]) for found in re.finditer(r"starting 2 ranks \((\d+) s elapsed\)", err)]
    assert len(waited) == 4 and waited[0] >= 10
    assert all(later >= 2 * first for first, later in pairwise(waited[1:]))


def test_step_line() -> None:
    known = Expected(ranks=8, steps=100, flops_per_step=5e13, peak_flops=4e14)
    assert step_text(STEP, known) == (
        "step 1/100  loss 2.3026  lr 1.00e-04  12,346 tokens/s  25% MFU  peak 3.0 GiB  0:50 left"
    )
    bare = {"step": 3, "seconds": 0.1, "memory": 5 << 20}
    assert step_text(bare, Expected(ranks=1)) == "step 3  peak 5 MiB"


def test_cpu_memory_is_resident_memory() -> None:
    text = summary(END, STEP, Expected(ranks=1, on_cpu=True, peak_bytes=1 << 30), "", "0:12")
    assert "3.0 GiB resident on rank 0, estimated 1.0 GiB of tensors" in text
    assert text.endswith("no checkpoint saved")


def test_summary_has_loss_of_last_step() -> None:
    text = summary(END | {"loss": 1.25}, STEP, Expected(ranks=1), "", "0:12")
    assert "20 steps in 0:12, loss 1.2500 at step 20;" in text


def test_clock() -> None:
    assert [clock(seconds) for seconds in (4, 75, 3 * 3600 + 4 * 60 + 59)] == [
        "0:04",
        "1:15",
        "3:04:59",
    ]


def test_unterminated_line_is_shown_immediately(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = "import sys; sys.stderr.write('x' * 1_000_000 + ' the end'); sys.exit(3)"
    ended = {"event": "ended", "rank": 0, "of": 1, "how": "ended with exit code 3"}
    path, log = tmp_path / "events.jsonl", tmp_path / "run.log"
    path.write_text(json.dumps(ended) + "\n")
    job = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert RunDisplay(job, path, log, Expected(ranks=2)).follow() == 3
    assert "the end\ndsconfig run: rank 1 ended with exit code 3" in capfd.readouterr().err


def test_chained_exceptions_are_shown_together(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = "try:\n    1/0\nexcept ZeroDivisionError:\n    raise ValueError('first\\nsecond')"
    ended = {"event": "ended", "rank": 0, "of": 0, "how": "ended with exit code 1"}
    _, _, err = follow(tmp_path, capfd, (ended,), script=script)
    assert "failed before the engine was built: ValueError: first dsconfig run:" in err
    assert "division by zero During handling of the above exception" in err
    assert err.endswith("ValueError: first second")


def test_killed_launcher_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    _, _, err = follow(tmp_path, capfd, script=script)
    assert "the launcher was killed by SIGKILL" in err
