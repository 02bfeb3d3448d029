"""Terminal output of ``dsconfig run``: output of the ranks, progress, and the result.

[Note: three streams] stdout and stderr of the ranks are passed through; the launcher's output goes
only to a log. Tracebacks are delayed until the job has continued for a while, so that the report
of a failure comes before its traceback. The engine writes steps, checkpoints and failures as JSON
lines to a separate file (``dsengine.observation.events``).
"""

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from dsconfig import launch_env
from dsconfig.commands.text_table import paragraph
from dsconfig.report.sizes import counted, size

TICK = 0.25
QUIET_SECONDS = 2.0
"""Seconds without events after which the status is shown on a terminal."""
LOG_INTERVAL = 10.0
"""Seconds between lines if stderr is not a terminal; doubled while the status stays the same."""
TRACEBACK_DELAY = 5.0
"""Seconds that a traceback is delayed."""
STOPPING = "stopping all ranks"
TO_KILL = "repeat the signal to kill them"
TRACEBACK = b"Traceback (most recent call last):"
_END = re.compile(rb"\r\n|\n|\r")
LONGEST = 1 << 16
"""Bytes after which an unterminated line is printed."""
_RANK = re.compile(rb"\[rank(\d+)\]:")
"""Prefix that torch adds to each traceback line once a process group exists."""


class Expected(NamedTuple):
    """Expected values of a run; None if unknown."""

    ranks: int
    steps: int | None = None
    peak_bytes: int | None = None
    on_cpu: bool = False
    flops_per_step: float | None = None
    """FLOPs of the model per rank."""
    peak_flops: float | None = None
    """FLOP/s of one GPU."""


class RunDisplay:
    """Output and status of one job."""

    def __init__(
        self, job: "subprocess.Popen[bytes]", events: Path, log: Path, expected: Expected
    ) -> None:
        self._job, self._events, self._log_path, self._expected = job, events, log, expected
        self._log = log.open("ab", buffering=0)
        self._screen = sys.stderr
        self._live = self._screen.isatty()
        self._read_to = 0
        self._rest = b""
        """Unterminated last line of stderr."""
        self._tracebacks: dict[int | None, bytes] = {}
        """By rank; None for exceptions before a process group exists."""
        self._last_traceback = 0.0
        self._started = self._last_message = self._last_event = time.monotonic()
        self._patience = LOG_INTERVAL
        ranks = counted(expected.ranks, "rank")
        self._status_text = f"starting {ranks}" if expected.ranks else "waiting for node 0"
        self._has_status_line = self._is_mid_line = False
        self._step: dict[str, Any] = {}
        self._end: dict[str, Any] = {}
        self._failures: list[dict[str, Any]] = []
        self._exit_event: dict[str, Any] = {}
        self._refusal = ""
        """Why the nodes cannot train together."""
        self._restart_is_pointless = False
        self._checkpoint = ""
        self._received: Sequence[signal.Signals] = ()

    def follow(self, received: Sequence[signal.Signals] = ()) -> int:
        """Show the job until it exits; return its exit code. ``received``: signals so far."""
        assert self._job.stdout is not None and self._job.stderr is not None
        self._received = received
        with selectors.DefaultSelector() as streams:
            streams.register(self._job.stdout, selectors.EVENT_READ, self._output)
            streams.register(self._job.stderr, selectors.EVENT_READ, self._error)
            while streams.get_map():
                ready = streams.select(TICK)
                for key, _ in ready:
                    chunk = os.read(key.fd, 1 << 16)
                    if chunk:
                        key.data(chunk)
                    else:
                        streams.unregister(key.fileobj)
                self._tick()
                if not ready and self._job.poll() is not None:
                    break  # a child of a rank may keep a stream open
        with self._job:  # closes the streams
            code = self._job.wait()
        self._read_events()
        code = launch_env.REFUSED if self._restart_is_pointless and not received else code
        self._summary(code, received)
        return code

    # Output of the ranks

    def _output(self, chunk: bytes) -> None:
        self._log.write(chunk)
        self._clear()
        _write(sys.stdout, chunk)
        self._is_mid_line = sys.stdout.isatty() and not chunk.endswith((b"\n", b"\r"))

    def _error(self, chunk: bytes) -> None:
        self._log.write(chunk)
        text, at = self._rest + chunk, 0
        for end in _END.finditer(text, max(0, len(self._rest) - 1)):
            self._error_line(text[at : end.end()])
            at = end.end()
        self._rest = text[at:]
        if len(self._rest) > LONGEST and not self._tracebacks:
            self._release()

    def _error_line(self, line: bytes) -> None:
        of_rank = _RANK.match(line)
        # Without the rank prefix, the end of a traceback cannot be detected: messages may have
        # several lines, and chained exceptions have text in between.
        if of_rank or line.startswith(TRACEBACK) or None in self._tracebacks:
            rank = int(of_rank[1]) if of_rank else None
            self._tracebacks[rank] = self._tracebacks.get(rank, b"") + line
            self._last_traceback = time.monotonic()
            return
        if self._tracebacks and not line.strip():
            return  # between the parts of a traceback
        self._clear()
        _write(self._screen, line)
        self._is_mid_line = False

    def _release(self) -> None:
        """Print delayed tracebacks, because the job continued."""
        delayed = [*self._tracebacks.values(), self._rest]
        self._tracebacks, self._rest = {}, b""
        for text in delayed:
            if text:
                self._clear()
                _write(self._screen, text)
                self._is_mid_line = not text.endswith((b"\n", b"\r"))

    # Progress

    def _tick(self) -> None:
        now = time.monotonic()
        self._read_events()
        running = self._job.poll() is None
        delayed = self._tracebacks or self._rest
        if (
            running
            and delayed
            and now - self._last_traceback > TRACEBACK_DELAY
            and not self._failures
        ):
            self._release()
        if not running:
            return
        if self._received and self._status_text != STOPPING:
            self._status_text, self._last_event = STOPPING, now
            self._message(f"{self._received[0].name} received, {STOPPING}; {TO_KILL}")
        quiet = now - self._last_event
        if self._live and quiet > QUIET_SECONDS:
            self._status(f"{self._status_text} ({quiet:.0f} s elapsed)")
        elif not self._live and min(now - self._last_message, quiet) > self._patience:
            self._message(f"{self._status_text} ({quiet:.0f} s elapsed)")
            self._patience *= 2

    def _read_events(self) -> None:
        try:
            with self._events.open("rb") as file:
                file.seek(self._read_to)
                lines = file.read()
        except OSError:
            return
        complete = lines[: lines.rfind(b"\n") + 1]
        self._read_to += len(complete)
        for line in complete.splitlines():
            self._handle(json.loads(line))

    def _handle(self, event: dict[str, Any]) -> None:
        self._last_event, self._patience = time.monotonic(), LOG_INTERVAL
        match event["event"]:
            case "engine":
                self._status_text = "running the first step"
            case "step":
                self._step, self._status_text = event, f"finished step {event['step']}"
                self._show_step()
            case "checkpoint":
                self._checkpoint = event["path"]
            case "ended":
                self._exit_event = event
            case "refused":
                self._refusal = self._refusal or event["why"]
                if event.get("again") and self._job.poll() is None:
                    self._job.terminate()  # restarted ranks would be rejected again
                    self._restart_is_pointless = True
            case "failure":
                self._failures.append(event)
                if not self._received:  # or it is the effect of the signal
                    self._status_text = f"rank {event['rank']} failed, stopping the others"
            case _:
                self._end = event

    def _show_step(self) -> None:
        text = step_text(self._step, self._expected)
        if self._live:
            self._status(text)
        elif self._step["step"] == 1 or time.monotonic() - self._last_message > LOG_INTERVAL:
            self._message(text)

    def _status(self, text: str) -> None:
        """Print a status line that the next one replaces."""
        width = os.get_terminal_size(self._screen.fileno()).columns if self._live else 80
        self._screen.write(f"\r\033[K{text[: width - 1]}")
        self._screen.flush()
        self._has_status_line = True

    def _message(self, text: str) -> None:
        self._clear()
        self._last_message = time.monotonic()
        print(paragraph(f"dsconfig run: {text}", indent="  "), file=self._screen, flush=True)

    def _end_line(self) -> None:
        """Print the last, possibly unterminated, line of the ranks and end it."""
        rest, self._rest = self._rest, b""
        if rest:
            _write(self._screen, rest)
        if rest or self._is_mid_line:
            _write(self._screen, b"\n")

    def _clear(self) -> None:
        if self._has_status_line:
            self._screen.write("\r\033[K")
            self._has_status_line = False

    # Result

    def _summary(self, code: int, received: Sequence[signal.Signals]) -> None:
        self._clear()
        self._log.close()
        self._end_line()
        if received or code:
            self._report_failure(code, received)
            return
        self._release()
        self._log_path.unlink(missing_ok=True)
        last = self._end or self._step
        if last:
            self._message(summary(last, self._step, self._expected, self._checkpoint, self._took))

    @property
    def _took(self) -> str:
        return clock(time.monotonic() - self._started)

    def _report_failure(self, code: int, received: Sequence[signal.Signals]) -> None:
        causes = [failure for failure in self._failures if not failure["follows"]]
        if received:
            last = f" after step {self._step['step']}" if self._step else ""
            self._message(f"stopped by {received[0].name}{last}, in {self._took}")
        else:
            self._message(self._failure_text(causes, code))
            if self._step:
                self._message(f"last completed step: {self._step['step']}, after {self._took}")
        if self._checkpoint:
            self._message(f"latest checkpoint of this run: {self._checkpoint}")
        self._message(f"full log, including the launcher: {self._log_path}")
        if not received:
            culprit = causes[0]["rank"] if causes else None
            _write(self._screen, self._tracebacks.get(culprit, self._tracebacks.get(None, b"")))

    def _failure_text(self, causes: list[dict[str, Any]], code: int) -> str:
        """Return rank, phase and cause of a failure."""
        if self._refusal:
            return self._refusal
        if causes:
            first = causes[0]
            return f"rank {first['rank']} failed in {first['phase']}: {first['cause']}"
        if not self._exit_event:
            if code < 0:
                return f"the launcher was killed by {signal.Signals(-code).name}"
            return f"the launcher exited with code {code}"
        rank = f"rank {self._exit_event['of']}"
        if self._failures:  # it could not report, but other ranks noticed
            other = self._failures[0]
            return (
                f"{rank} {self._exit_event['how']}; rank {other['rank']} reports: {other['cause']}"
            )
        if None in self._tracebacks:
            cause = exception_line(self._tracebacks[None])
            return f"{rank} failed before the engine was built: {cause}"
        return f"{rank} {self._exit_event['how']}"


def exception_line(traceback: bytes) -> str:
    """Return the first line of the exception that ends a chain of tracebacks."""
    text = traceback.rpartition(TRACEBACK)[2].decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip() and not line[0].isspace()]
    return lines[0] if lines else "an exception"


def step_text(step: dict[str, Any], expected: Expected) -> str:
    """Return ``step 12/100  loss 2.3026  lr 1e-04  12,345 tokens/s  31% MFU  peak 12.3 GiB``."""
    of = f"/{expected.steps}" if expected.steps else ""
    parts = [f"step {step['step']}{of}"]
    if step.get("loss") is not None:
        parts.append(f"loss {step['loss']:.4f}")
    if step.get("lr") is not None:
        parts.append(f"lr {step['lr']:.2e}")
    if step.get("tokens_per_second"):
        parts.append(f"{step['tokens_per_second']:,.0f} tokens/s")
    seconds = step["seconds"]
    if expected.flops_per_step and expected.peak_flops and seconds:
        parts.append(f"{expected.flops_per_step / seconds / expected.peak_flops:.0%} MFU")
    parts.append(f"peak {size(step['memory'])}")
    if expected.steps and expected.steps > step["step"]:
        parts.append(f"{clock((expected.steps - step['step']) * seconds)} left")
    return "  ".join(parts)


def summary(
    last: dict[str, Any], step: dict[str, Any], expected: Expected, checkpoint: str, took: str
) -> str:
    """Return steps and time, the last known loss, memory, and the checkpoint."""
    kind = "resident on rank 0" if expected.on_cpu else "allocated on rank 0"
    text = f"{last['step']} steps in {took}"
    reported = last if last.get("loss") is not None else step
    if reported.get("loss") is not None:
        text += f", loss {reported['loss']:.4f} at step {reported['step']}"
    text += f"; peak {size(last['memory'])} {kind}"
    if expected.peak_bytes is None:
        text += " (no estimate: --model not specified)"
    else:
        kind = " of tensors" if expected.on_cpu else ""
        text += f", estimated {size(expected.peak_bytes)}{kind}"
    return f"{text}; checkpoint: {checkpoint}" if checkpoint else f"{text}; no checkpoint saved"


def clock(seconds: float) -> str:
    """Return seconds as ``0:12`` or ``3:04:59``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _write(stream: IO[str], chunk: bytes) -> None:
    """Write bytes unchanged; after a broken pipe, to os.devnull."""
    try:
        stream.flush()
        stream.buffer.write(chunk)  # type: ignore[attr-defined]
        stream.flush()
    except BrokenPipeError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
