"""Output of each command on terminals of 80 (color) and 120 columns.

Not included: files (``init``, ``convert``, ``schema``) and ``concise``.
"""

import fcntl
import json
import os
import pty
import re
import struct
import termios
import threading
from pathlib import Path

import pytest

from command_line import run_on_terminal

GPUS = ("--gpus", "4", "--device", "a100-80gb")
LLAMA = ("--model", "llama-3-8b", *GPUS, "--seq-len", "8192")
SCREENS = [
    ("estimate", "--params", "13e9", "--gpus", "8"),
    ("estimate", "ds.json", *LLAMA),
    ("estimate", "--fit", "--gpus", "2", "--device", "rtx-4090", "--host-memory", "128GB"),
    ("plan", "ds.json", *LLAMA),
    ("tune", *LLAMA),
    ("tune", *LLAMA, "--runtime", "transformers"),
    ("resolve", "open.json", *LLAMA),
    ("resolve", "open.json", *LLAMA, "--runtime", "dsengine"),
    ("validate", "bad.json"),
    ("validate", "ds.json"),
    ("diff", "ds.json", "bad.json"),
    ("diff", "ds.json", "--from-version", "0.14.4", "--to-version", "0.19.8"),
    ("explain", "overlap_comm"),
    ("explain", "DSC404"),
    ("doctor",),
    ("doctor", "ds.json"),
    ("models", "llama"),
    ("devices", "h100"),
    ("estimate", "--help"),
    ("estmate",),
]
GOOD = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
}
OPEN = {
    **GOOD,
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": "auto"},
    "train_batch_size": "auto",
}
BAD = {
    "train_batch_size": 8,
    "gradient_checkpointing": True,
    "fp16": {"enabled": True},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "sub_group_size": 0, "cpu_offload": True},
    "flops_profiler": 3,
}
ESCAPE = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")
OVERWRITTEN = re.compile(r"[^\n]*\r")
"""Progress output, which is replaced on the terminal."""
COLOURED = re.compile(r"\x1b\[[0-9;]*(?:3[0-7]|9[0-7])m")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("screens")
    (made / "ds.json").write_text(json.dumps(GOOD, indent=2))
    (made / "open.json").write_text(json.dumps(OPEN))
    (made / "bad.json").write_text(json.dumps(BAD, indent=2))
    return made


def shown(command: tuple[str, ...], size: tuple[int, int], folder: Path, **more: str) -> str:
    """Return the output of a command on a terminal of (columns, rows)."""
    screen, terminal = pty.openpty()
    columns, rows = size
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in UNSET}
    environment = {**kept, "TERM": "xterm-256color", **more}
    parts: list[bytes] = []
    reader = threading.Thread(target=read_until_closed, args=(screen, parts))
    reader.start()
    try:
        code = run_on_terminal(terminal, *command, cwd=folder, environment=environment)
    finally:
        os.close(terminal)
        reader.join()
        os.close(screen)
    assert code in (0, 1, 2)
    return OVERWRITTEN.sub("", b"".join(parts).decode().replace("\r\n", "\n"))


def read_until_closed(screen: int, parts: list[bytes]) -> None:
    while True:
        try:
            part = os.read(screen, 65536)
        except OSError:  # raised on Linux when the other end is closed
            return
        if not part:
            return
        parts.append(part)


UNSET = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI", "GITHUB_ACTIONS")


@pytest.mark.parametrize("command", SCREENS, ids=" ".join)
def test_lines_fit_the_terminal(command: tuple[str, ...], folder: Path) -> None:
    narrow = ESCAPE.sub("", shown(command, (80, 24), folder))
    wide = shown(command, (120, 40), folder, NO_COLOR="1")
    assert not COLOURED.search(wide)
    for columns, text in ((80, narrow), (120, ESCAPE.sub("", wide))):
        lines = text.splitlines()
        assert lines
        # A URL stays on one line.
        assert not [line for line in lines if len(line) > columns and "https://" not in line]
        assert not re.search(r"[\d.]\n *(?:GiB|MiB|GB)\b", text), "unit on the next line"
        key = "stage3_param_persistence_threshold"
        assert text.count(key[:20]) == text.count(key), "a key in two parts"
    if command[0] in ("estimate", "plan", "tune") and "--help" not in command:
        lines = narrow.splitlines()
        for seen in (lines[:24], lines[-24:]):
            verdict = re.search(r"[Ff]its?\b|largest model|[Nn]eeds", "\n".join(seen))
            assert verdict, "no verdict in the first or last 24 lines"


def test_verdict_is_repeated_below_long_output(folder: Path) -> None:
    command = ("estimate", "ds.json", *LLAMA)
    verdict = "Does not fit: "
    for rows, times in ((24, 2), (90, 1)):
        assert ESCAPE.sub("", shown(command, (80, rows), folder)).count(verdict) == times
    end = ESCAPE.sub("", shown(command, (80, 24), folder)).splitlines()[-8:]
    assert any(line.startswith(verdict) for line in end) and "To fit:" in end
