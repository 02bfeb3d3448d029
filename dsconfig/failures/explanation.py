"""Figures of out-of-memory errors, and the report on a failure without a recorded remedy."""

import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from dsconfig.facts.run_log import Growth
from dsconfig.failures.text import Frame, shortened
from dsconfig.report.sizes import GIB, KIB, MIB, both
from dsconfig.schema import key_index

_UNITS = {"bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "KB": KIB, "MB": MIB, "GB": GIB}
_SIZE = r"(\d{1,12}(?:\.\d{1,6})?) ?(bytes|[KMG]i?B)"
_FIGURES: Mapping[str, str] = {
    "requested": rf"Tried to allocate {_SIZE}",
    "capacity": rf"total capac?i?ty of {_SIZE}|{_SIZE} total capacity",
    "free": rf"of which {_SIZE} is free|{_SIZE} free",
    "allocated": rf"Of the allocated memory {_SIZE}|{_SIZE} (?:already|is) allocated",
    "unused": rf"{_SIZE} is reserved by PyTorch but unallocated",
    "reserved": rf"{_SIZE} (?:reserved in total|cached)",
    "process": rf"this process has {_SIZE} memory in use",
}
"""Sizes in the messages of torch 1 and 2, for CUDA, HIP, XPU and NPU."""
_PROCESS = re.compile(rf"Process (\d{{1,10}}) has {_SIZE} memory in use")
_CONTEXT = 2 * GIB
"""Memory of a process outside PyTorch's allocator that is usual: CUDA's context, NCCL."""
_KEY = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)+")
_PACKAGE = re.compile(
    r"(?:site|dist)-packages/([\w.]{1,80})/|/(deepspeed|transformers|accelerate)/"
)
CHECKS = Path(__file__).with_name("checks.txt")
"""One line per range of releases: the first (``-`` for the oldest known), the last
(``PACKAGE-RELEASE`` for the newest known), and the keys of what they raise or assert."""
MOST_KEYS = 6
LONGEST = 1000
"""Characters of a quoted message."""


def memory_figures(message: str) -> dict[str, Any]:
    """Return the sizes in an out-of-memory message, in bytes; ``others`` by process."""
    found: dict[str, Any] = {}
    for name, pattern in _FIGURES.items():
        hit = re.search(pattern, message)
        if hit is not None:
            number, unit = list(filter(None, hit.groups()))[:2]
            found[name] = int(float(number) * _UNITS[unit])
    if "unused" not in found and {"reserved", "allocated"} <= found.keys():
        found["unused"] = max(0, found["reserved"] - found["allocated"])
    others = {hit[1]: int(float(hit[2]) * _UNITS[hit[3]]) for hit in _PROCESS.finditer(message)}
    own = found.get("allocated", 0) + found.get("unused", 0)
    if "process" not in found and "allocated" in found:
        # torch prints the number outside of the container: the closest is this process.
        near = min(others, key=lambda number: abs(others[number] - own), default=None)
        if near is not None and 0 <= others[near] - own < _CONTEXT + own // 10:
            found["process"] = others.pop(near)
    if others:
        found["others"] = others
    elif {"capacity", "free", "allocated"} <= found.keys():
        used = found.get("process", own + _CONTEXT)
        found["elsewhere"] = max(0, found["capacity"] - found["free"] - max(used, own))
    return found


def conclusion(figures: Mapping[str, Any]) -> str:
    """Return what the figures show: "another process", "fragmentation" or "need"."""
    requested, unused = figures.get("requested"), figures.get("unused", 0)
    if requested is None or "allocated" not in figures:
        return ""
    foreign = sum(figures.get("others", {}).values()) + figures.get("elsewhere", 0)
    free = figures.get("free", 0)
    lacks = requested - free
    if foreign > max(lacks, figures.get("capacity", 0) // 20, GIB):
        return "another process"
    if unused + free >= requested and unused > max(GIB, figures["allocated"] // 16):
        return "fragmentation"
    return "need"


def memory_values(figures: Mapping[str, Any]) -> dict[str, str]:
    """Return the figures as text, by the names that causes use."""
    values = {name: both(size) for name, size in figures.items() if isinstance(size, int)}
    others: Mapping[str, int] = figures.get("others", {})
    if others:
        listed = (f"process {number}: {both(size)}" for number, size in others.items())
        values["others"] = ", ".join(listed)
    elif "elsewhere" in values:
        values["others"] = values["elsewhere"]
    return values


def course_values(step: int, growth: Growth | None) -> dict[str, str]:
    """Return how far the run got, and how its memory grew, as text."""
    values = {"step": f"{step:,}"}
    if growth is not None:
        sizes = {"first": both(growth.first), "last": both(growth.last)}
        values |= {**sizes, "readings": str(growth.readings)}
    return values


def innermost(frames: tuple[Frame, ...]) -> Frame | None:
    """Return the last frame that is not of torch's module calls or decorators."""
    outside = [
        frame
        for frame in frames
        if not re.search(r"torch/(?:nn/modules/module|utils/)", frame.file)
    ]
    return (outside or list(frames) or [None])[-1]


def package_of(frame: Frame | None) -> str:
    """Return the package of a frame, or an empty text for files of the user."""
    hit = _PACKAGE.search(frame.file) if frame is not None else None
    return (hit[1] or hit[2]) if hit else ""


def check_key(package: str, function: str, source: str) -> str:
    """Return the key of a raise or assert: of its function and the first line of its source."""
    text = f"{package} {function} {' '.join(source.split())}"
    return urlsafe_b64encode(sha256(text.encode()).digest()).decode()[:6]


@cache
def _checks() -> Mapping[str, tuple[str, str]]:
    """Return the first and the last release of each check, by key."""
    rows = (line.split() for line in CHECKS.read_text("utf-8").splitlines())
    return {key: (first, last) for first, last, *keys in rows for key in keys}


def _releases_with(package: str, frame: Frame) -> tuple[str, str]:
    """Return which releases contain the line that stopped, and which do not; empty if unknown."""
    found = _checks().get(check_key(package, frame.function, frame.source))
    if found is None:
        return "", ""
    first, last = ("" if "-" in bound else bound for bound in found)
    if not first and not last:
        return f"; all known releases of {package} contain that line", ""
    since = f" since {first}" if first else ""
    until = f" up to {last}" if last else ""
    other = f"newer than {last}" if last else f"older than {first}"
    return (
        f"; {package} contains that line{since}{until}",
        f"Releases of {package} {other} do not contain that line. ",
    )


def unknown(message: str, frame: Frame | None, releases: Mapping[str, str]) -> tuple[str, str]:
    """Return cause and remedy of a failure without a recorded remedy."""
    package = package_of(frame)
    name = f"{package} {releases[package]}" if package in releases else package or "the script"
    place = f", {frame.function} ({frame.file}:{frame.line})" if frame and frame.function else ""
    is_check = frame is not None and frame.source.startswith(("assert ", "raise ", "if "))
    condition = f"; the line that stopped: {frame.source}" if frame and is_check else ""
    known, others = _releases_with(package, frame) if frame and is_check else ("", "")
    keys = keys_in(message + " " + (frame.source if frame else ""))
    listed = f"; config keys that occur in it: {', '.join(keys)}" if keys else ""
    cause = (
        f"unknown, no remedy is recorded: {name}{place} raised "
        f"{shortened(message, LONGEST)}{condition}{known}{listed}"
    )
    check = f"Check {', '.join(keys)} in the config (`dsconfig validate FILE`). " if keys else ""
    start = (
        f"The check that failed is in {package}: compare the release with others, and search its "
        "issues for the message. "
        if package
        else "Start at the last frame in your own files. "
    )
    return cause, (
        f"{check}{others}{start}To report it, collect the full traceback of the first rank that "
        "failed, the config, the command, and the releases of torch, deepspeed, transformers and "
        "accelerate (ds_report)."
    )


def keys_in(text: str) -> list[str]:
    """Return the config keys that a message names, as dotted paths."""
    found: dict[str, None] = {}
    for word in _KEY.findall(text):
        paths = key_index.paths_of(word)
        if paths:
            found[str(paths[0])] = None
    return list(found)[:MOST_KEYS]
