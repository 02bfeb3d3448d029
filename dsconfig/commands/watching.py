"""The screen of ``dsconfig run``: what the ranks print, how far they are, how they ended.

[Note: three streams] The ranks' standard output and error pass through as they are; what the
launcher says of itself goes to a log alone. Tracebacks wait until the job has gone on for a while,
so that a failure begins with the line that names it. What the engine tells of steps, checkpoints
and failures comes as lines of JSON in a file of its own (``dsengine.observation.events``).
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
SILENCE = 2.0
"""Seconds after which something is said when nothing has happened."""
IN_A_LOG = 10.0
"""Seconds between lines about steps where nobody looks at a terminal."""
HELD = 5.0
"""Seconds that a traceback waits for the end of the job."""
TRACEBACK = b"Traceback (most recent call last):"
_END = re.compile(rb"\r\n|\n|\r")
LONGEST = 1 << 16
"""Bytes of a line that has no end yet, above which it is shown as it is."""
_RANK = re.compile(rb"\[rank(\d+)\]:")
"""What torch puts before every line of a traceback, once a process group exists."""


class Expected(NamedTuple):
    """What the plan and the facts say of a run; None where they do not."""

    ranks: int
    steps: int | None = None
    peak_bytes: int | None = None
    on_cpu: bool = False
    flops_per_step: float | None = None
    """Of one rank: what the model needs."""
    peak_flops: float | None = None
    """Of one card, per second."""


class Watching:
    """One job, from its start to its end."""

    def __init__(
        self, job: "subprocess.Popen[bytes]", events: Path, log: Path, expected: Expected
    ) -> None:
        self._job, self._events, self._log_path, self._expected = job, events, log, expected
        self._log = log.open("ab", buffering=0)
        self._screen = sys.stderr
        self._live = self._screen.isatty()
        self._read_to = 0
        self._rest = b""
        """The line of standard error that has no end yet."""
        self._tracebacks: dict[int | None, bytes] = {}
        """By rank; None for what was raised before there was a process group."""
        self._held_since = 0.0
        self._started = self._spoke = self._happened = time.monotonic()
        self._patience = SILENCE
        ranks = counted(expected.ranks, "rank")
        self._doing = f"starting {ranks}" if expected.ranks else "waiting for node 0"
        self._shown = self._is_inside_line = False
        self._step: dict[str, Any] = {}
        self._end: dict[str, Any] = {}
        self._failures: list[dict[str, Any]] = []
        self._ended: dict[str, Any] = {}
        self._refusal = ""
        """Why the nodes do not train together."""
        self._is_in_vain = False
        self._checkpoint = ""

    def follow(self, received: Sequence[signal.Signals] = ()) -> int:
        """Show the job until it ends; return its exit code. ``received``: what is to end it."""
        assert self._job.stdout is not None and self._job.stderr is not None
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
                    break  # a child of a rank may hold a stream open for ever
        with self._job:  # closes the streams
            code = self._job.wait()
        self._take_events()
        code = launch_env.REFUSED if self._is_in_vain and not received else code
        self._summary(code, received)
        return code

    # What the ranks print

    def _output(self, chunk: bytes) -> None:
        self._log.write(chunk)
        self._clear()
        _write(sys.stdout, chunk)
        self._is_inside_line = sys.stdout.isatty() and not chunk.endswith((b"\n", b"\r"))

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
        # Where no rank is named, nothing tells the end of a traceback: messages have several
        # lines, and chained exceptions words between them.
        if of_rank or line.startswith(TRACEBACK) or None in self._tracebacks:
            rank = int(of_rank[1]) if of_rank else None
            self._tracebacks[rank] = self._tracebacks.get(rank, b"") + line
            self._held_since = time.monotonic()
            return
        if self._tracebacks and not line.strip():
            return  # between the parts of a traceback
        self._clear()
        _write(self._screen, line)
        self._is_inside_line = False

    def _release(self) -> None:
        """Show what was held: it did not end the job."""
        held = [*self._tracebacks.values(), self._rest]
        self._tracebacks, self._rest = {}, b""
        for text in held:
            if text:
                self._clear()
                _write(self._screen, text)
                self._is_inside_line = not text.endswith((b"\n", b"\r"))

    # How far they are

    def _tick(self) -> None:
        now = time.monotonic()
        self._take_events()
        running = self._job.poll() is None
        holds = self._tracebacks or self._rest
        if running and holds and now - self._held_since > HELD and not self._failures:
            self._release()
        if not running:
            return
        quiet = now - self._happened
        if self._live and quiet > SILENCE:
            self._status(f"{self._doing}, {quiet:.0f} s")
        elif not self._live and now - self._spoke > self._patience and quiet > SILENCE:
            self._say(f"{self._doing}, {quiet:.0f} s")
            self._patience *= 2

    def _take_events(self) -> None:
        try:
            with self._events.open("rb") as file:
                file.seek(self._read_to)
                lines = file.read()
        except OSError:
            return
        whole = lines[: lines.rfind(b"\n") + 1]
        self._read_to += len(whole)
        for line in whole.splitlines():
            self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        self._happened, self._patience = time.monotonic(), SILENCE
        match event["event"]:
            case "engine":
                self._doing = "the first step is running"
            case "step":
                self._step, self._doing = event, f"after step {event['step']}"
                self._show_step()
            case "checkpoint":
                self._checkpoint = event["path"]
            case "ended":
                self._ended = event
            case "refused":
                self._refusal = self._refusal or event["why"]
                if event.get("again") and self._job.poll() is None:
                    self._job.terminate()  # ranks that are started again would say the same
                    self._is_in_vain = True
            case "failure":
                self._failures.append(event)
                self._doing = f"rank {event['rank']} has failed, the others end"
            case _:
                self._end = event

    def _show_step(self) -> None:
        text = step_text(self._step, self._expected)
        if self._live:
            self._status(text)
        elif self._step["step"] == 1 or time.monotonic() - self._spoke > IN_A_LOG:
            self._say(text)

    def _status(self, text: str) -> None:
        """One line that the next one replaces."""
        width = os.get_terminal_size(self._screen.fileno()).columns if self._live else 80
        self._screen.write(f"\r\033[K{text[: width - 1]}")
        self._screen.flush()
        self._shown = True

    def _say(self, text: str) -> None:
        self._clear()
        self._spoke = time.monotonic()
        print(paragraph(f"dsconfig run: {text}", indent="  "), file=self._screen, flush=True)

    def _end_line(self) -> None:
        """Show the last line of the ranks, which need not end, and go on below it."""
        rest, self._rest = self._rest, b""
        if rest:
            _write(self._screen, rest)
        if rest or self._is_inside_line:
            _write(self._screen, b"\n")

    def _clear(self) -> None:
        if self._shown:
            self._screen.write("\r\033[K")
            self._shown = False

    # How they ended

    def _summary(self, code: int, received: Sequence[signal.Signals]) -> None:
        self._clear()
        self._log.close()
        self._end_line()
        if received or code:
            self._say_cut_short(code, received)
            return
        self._release()
        self._log_path.unlink(missing_ok=True)
        last = self._end or self._step
        if last:
            self._say(ending(last, self._step, self._expected, self._checkpoint, self._took))

    @property
    def _took(self) -> str:
        return clock(time.monotonic() - self._started)

    def _say_cut_short(self, code: int, received: Sequence[signal.Signals]) -> None:
        own = [each for each in self._failures if not each["follows"]]
        if received:
            last = f" after step {self._step['step']}" if self._step else ""
            self._say(f"stopped by {received[0].name}{last}, in {self._took}")
        else:
            self._say(self._who_failed(own, code))
            if self._step:
                self._say(f"the last step that was told: {self._step['step']}, after {self._took}")
        if self._checkpoint:
            self._say(f"the newest checkpoint of this run: {self._checkpoint}")
        self._say(f"what was printed, and the launcher's own words: {self._log_path}")
        if not received:
            culprit = own[0]["rank"] if own else None
            _write(self._screen, self._tracebacks.get(culprit, self._tracebacks.get(None, b"")))

    def _who_failed(self, own: list[dict[str, Any]], code: int) -> str:
        """Rank, phase and cause."""
        if self._refusal:
            return self._refusal
        if own:
            first = own[0]
            return f"rank {first['rank']} failed in {first['phase']}: {first['cause']}"
        if not self._ended:
            if code < 0:
                return f"the launcher was killed by {signal.Signals(-code).name}"
            return f"the launcher ended with exit code {code}"
        who = f"rank {self._ended['of']}"
        if self._failures:  # it could not tell, but others saw it go
            other = self._failures[0]
            return f"{who} {self._ended['how']}; rank {other['rank']} says: {other['cause']}"
        if None in self._tracebacks:
            return f"{who} failed before an engine was built: {raised(self._tracebacks[None])}"
        return f"{who} {self._ended['how']}"


def raised(traceback: bytes) -> str:
    """What a traceback ends with: the first line after its frames, of the last one in a chain."""
    text = traceback.rpartition(TRACEBACK)[2].decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip() and not line[0].isspace()]
    return lines[0] if lines else "an exception"


def step_text(step: dict[str, Any], expected: Expected) -> str:
    """``step 12/100  loss 2.3026  lr 1e-04  12,345 tokens/s  31% MFU  12.3 GiB  0:12:10 left``."""
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
    parts.append(size(step["memory"]))
    if expected.steps and expected.steps > step["step"]:
        parts.append(f"{clock((expected.steps - step['step']) * seconds)} left")
    return "  ".join(parts)


def ending(
    last: dict[str, Any], told: dict[str, Any], expected: Expected, checkpoint: str, took: str
) -> str:
    """Steps and time, the loss of the last step that was ``told``, what was held against what was
    expected, and where the checkpoint lies."""
    kind = "resident on rank 0" if expected.on_cpu else "allocated on rank 0"
    text = f"{last['step']} steps in {took}"
    if told.get("loss") is not None:
        text += f", loss {told['loss']:.4f} at step {told['step']}"
    text += f"; at most {size(last['memory'])} {kind}"
    if expected.peak_bytes is None:
        text += " (no estimate without --model)"
    else:
        what = " of tensors" if expected.on_cpu else ""
        text += f", {size(expected.peak_bytes)}{what} were estimated"
    return f"{text}; checkpoint: {checkpoint}" if checkpoint else f"{text}; no checkpoint was saved"


def clock(seconds: float) -> str:
    """``0:12`` or ``3:04:59``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _write(stream: IO[str], chunk: bytes) -> None:
    """Pass on bytes as they are; where nobody reads any more, to nobody."""
    try:
        stream.flush()
        stream.buffer.write(chunk)  # type: ignore[attr-defined]
        stream.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
