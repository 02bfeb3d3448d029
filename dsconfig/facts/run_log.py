"""Parser for training logs: memory readings, throughput, config, out-of-memory errors.

Reads the lines of DeepSpeed (``see_memory_usage``, its timer, its config dump), torch's
out-of-memory error with the traceback before it, and nvidia-smi's table. DeepSpeed's GB are GiB: it
divides by 1024 three times. Values that are not printed stay None.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from dsconfig import os_errors
from dsconfig.facts import progress_bars
from dsconfig.facts.inputs import FactError
from dsconfig.report.sizes import GIB, KIB, MIB
from dsconfig.schema.paths import STAGE
from dsconfig.source.pointer import value_at

PHRASES = (
    "MA ",
    "see_memory_usage]",
    "version=",
    "version: ",
    "version ..",
    "info ......",
    '_version": ',
    "world_size",
    "SamplesPerSec=",
    "json = {",
    "MaxMemAllocated=",
    "llocated: ",
    "llocated=",
    "MiB /",
    "  Off |",
    "  On  |",
    "CUDA out of memory",
    "total capacity",
    "zero_optimization_stage",
    "batch size per device",
    "Accumulation steps",
)
"""Each line that is read contains one of these."""
MAX_BYTES = 512 * MIB
"""Larger input is not a log, or a device that never ends."""
_UNITS = {"KiB": KIB, "MiB": MIB, "GiB": GIB, "bytes": 1, "KB": KIB, "MB": MIB, "GB": GIB}
_NUMBER = r"(\d{1,15}(?:\.\d+)?)"
_SIZE = rf"{_NUMBER} (KiB|MiB|GiB|bytes)"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """One line of ``see_memory_usage``, in bytes; ``peak`` is since the previous reading."""

    caption: str
    phase: str | None
    """``init``, ``forward``, ``backward`` or ``step``; None if the caption names no phase."""
    allocated: int
    peak: int
    reserved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """torch's out-of-memory error, in bytes; ``phase`` is that of the innermost known frame."""

    tried: int
    capacity: int | None = None
    allocated: int | None = None
    reserved: int | None = None
    phase: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """GPU memory that rises throughout a log, in bytes."""

    first: int
    last: int
    readings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """Values found in a log. Sizes are bytes of one device."""

    release: str | None = None
    world_size: int | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    """Batch that the Trainer prints at the start of training."""
    config: Mapping[str, Any] | None = None
    stage: int | None = None
    """ZeRO stage that DeepSpeed printed."""
    readings: tuple[MemoryReading, ...] = ()
    samples_per_second: float | None = None
    """The last printed average, over all ranks."""
    seconds_per_iteration: float | None = None
    """According to the progress bar of training."""
    peak_allocated: int | None = None
    """Peak according to the throughput lines."""
    visible: int | None = None
    """Maximum over GPUs in nvidia-smi's table."""
    device: str | None = None
    """GPU name in nvidia-smi's table."""
    device_memory: int | None = None
    """Capacity of a GPU according to nvidia-smi, or to the out-of-memory error."""
    releases: Mapping[str, str] = field(default_factory=dict[str, str])
    """Releases of torch and transformers."""
    out_of_memory: OutOfMemory | None = None
    growth: Growth | None = None
    found: tuple[str, ...] = field(default=())
    """Kinds of lines that were recognized."""

    def peak(self, phase: str) -> int | None:
        """Return the peak allocation of a phase; None if nothing was printed."""
        return max(
            (reading.peak for reading in self.readings if reading.phase == phase), default=None
        )

    def end_of(self, phase: str) -> int | None:
        """Return the allocation at the last reading of a phase."""
        last = [reading.allocated for reading in self.readings if reading.phase == phase]
        return last[-1] if last else None


def from_path(path: str | Path) -> RunLog:
    """Read a log. Raises FactError if it is unreadable or has no recognized lines."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise FactError("log", f"{path}: {os_errors.reason(error)}") from error
    if len(data) > MAX_BYTES:
        limit = MAX_BYTES // MIB
        raise FactError("log", f"{path} is larger than {limit} MiB; pass an excerpt")
    log = from_text(data.decode("utf-8", errors="replace"))
    if not log.found:
        raise FactError(
            "log",
            f"{path} contains no recognized lines: DeepSpeed's memory readings (see_memory_usage), "
            "its throughput, its config, torch's out-of-memory error, or nvidia-smi's table",
        )
    return log


def from_text(text: str) -> RunLog:
    """Parse the lines of one run; other lines are ignored."""
    lines = text.splitlines()
    readings = tuple(_readings(lines))
    rates = list(_RATE.finditer(text))
    peaks = [float(match[1]) for match in _MAX_ALLOCATED.finditer(text)]
    gpus = [int(match[1]) * MIB for match in _NVIDIA_SMI.finditer(text)]
    out_of_memory = _out_of_memory(lines)
    config = _config(text)
    iteration = progress_bars.seconds_per_iteration(text)
    world = _first(_WORLD, text)
    capacity = [int(match[1]) * MIB for match in _NVIDIA_SMI_TOTAL.finditer(text)]
    versions = {name: _first(pattern, text) for name, pattern in _RELEASES.items()}
    kinds = {
        "memory readings": bool(readings),
        "throughput": bool(rates or iteration),
        "the config": config is not None,
        "an out-of-memory error": out_of_memory is not None,
        "nvidia-smi": bool(gpus),
    }
    return RunLog(
        release=_first(_RELEASE, text),
        world_size=int(world) if world else None,
        micro_batch=_count(_MICRO_BATCH, text),
        accumulation=_count(_ACCUMULATION, text),
        config=config,
        stage=_stage(config, text),
        readings=readings,
        samples_per_second=float(rates[-1][1]) if rates else None,
        seconds_per_iteration=iteration,
        peak_allocated=int(max(peaks) * GIB) if peaks else None,
        visible=max(gpus, default=None),
        device=_first(_NVIDIA_SMI_NAME, text),
        device_memory=min(capacity, default=out_of_memory.capacity if out_of_memory else None),
        releases={name: version for name, version in versions.items() if version},
        out_of_memory=out_of_memory,
        growth=_growth([*_allocations(text, readings), gpus]),
        found=tuple(kind for kind, is_present in kinds.items() if is_present),
    )


_USAGE = re.compile(
    rf"\bMA {_NUMBER} GB\s+Max_MA {_NUMBER} GB\s+CA {_NUMBER} GB(?:\s+Max_CA {_NUMBER} GB)?"
)
_CAPTION = re.compile(r"see_memory_usage\](.*)")
_VERSION = r"(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?)"
_RELEASE = re.compile(
    r"DeepSpeed info: version=([\d.]+)|^deepspeed info \.{2,} ([\d.]+)|"
    r"^\W{0,3}DeepSpeed[`']? version: ([\d.]+)",
    re.MULTILINE | re.IGNORECASE,
)
_WORLD = re.compile(
    r"(?:dist_world_size|world_size ?\.*|[^_]world_size) ?= ?(\d{1,12})\b|"
    r"\bworld_size \.{2,} (\d{1,12})\b"
)
_MICRO_BATCH = re.compile(r"Instantaneous batch size per device = ([1-9]\d{0,11})\b")
_ACCUMULATION = re.compile(r"Gradient Accumulation steps = ([1-9]\d{0,11})\b")
_RATE = re.compile(rf"(?<!Curr)SamplesPerSec={_NUMBER}")
_MAX_ALLOCATED = re.compile(rf"MaxMemAllocated={_NUMBER} ?GB")
_NVIDIA_SMI = re.compile(r"\|\s+(\d{1,12})MiB\s*/\s*\d{1,12}MiB\s*\|")
_NVIDIA_SMI_TOTAL = re.compile(r"\|\s+\d{1,12}MiB\s*/\s*(\d{1,12})MiB\s*\|")
_NVIDIA_SMI_NAME = re.compile(
    r"^\| {1,8}\d{1,4} {1,8}(\S[^|\n]{0,80}?) {2,60}(?:On|Off|N/A) {0,8}\|", re.MULTILINE
)
_RELEASES: Mapping[str, re.Pattern[str]] = {
    "torch": re.compile(
        rf"^torch version \.{{2,}} {_VERSION}|^\W{{0,3}}PyTorch version[^:]{{0,20}}: {_VERSION}",
        re.MULTILINE,
    ),
    "transformers": re.compile(
        rf'"transformers_version": "{_VERSION}"|^\W{{0,3}}transformers[`\']? version: {_VERSION}',
        re.MULTILINE | re.IGNORECASE,
    ),
    "accelerate": re.compile(
        rf"^\W{{0,3}}accelerate[`']? version: {_VERSION}", re.MULTILINE | re.IGNORECASE
    ),
}
"""Lines of ds_report, of the environment that programs print for issues, and of model configs."""
_JSON = re.compile(r"\bjson = (\{)")


def _readings(lines: list[str]) -> Iterator[MemoryReading]:
    """Yield the readings; a caption is on the line before its figures."""
    caption = ""
    for line in lines:
        figures = _USAGE.search(line)
        named = _CAPTION.search(line)
        title = named[1].strip() if named is not None else ""
        if figures is not None:
            allocated, peak, reserved = (int(float(figures[n]) * GIB) for n in (1, 2, 3))
            yield MemoryReading(
                caption=caption,
                phase=phase_of(caption),
                allocated=allocated,
                peak=peak,
                reserved=reserved,
            )
        elif title and "CPU Virtual Memory" not in title:
            caption = title


_ALLOCATED = re.compile(
    rf"^(.*?)\b\w{{0,30}}allocated ?[:=] ?{_NUMBER} ?([KMG]i?B)",
    re.IGNORECASE | re.MULTILINE,
)
_PEAK = re.compile(r"max|peak", re.IGNORECASE)
_DIGITS = re.compile(r"(?<![Rr]ank)(?<![Rr]ank )(?<!GPU)(?<!GPU )\d+(?:\.\d+)?")
"""Numbers of a line but those of ranks and GPUs."""


def _allocations(text: str, readings: Iterable[MemoryReading]) -> Iterable[Sequence[int]]:
    """Return the allocations at each place of the program, in the order of the log."""
    found: dict[str, list[int]] = {}
    for reading in readings:
        found.setdefault(_DIGITS.sub("", reading.caption), []).append(reading.allocated)
    for hit in _ALLOCATED.finditer(text):
        if _PEAK.search(hit[0][-60:]):
            continue
        size = int(float(hit[2]) * _UNITS[f"{hit[3][:1].upper()}{hit[3][1:-1].lower()}B"])
        found.setdefault(_DIGITS.sub("", hit[1]), []).append(size)
    return found.values()


LEAST_GROWTH = 0.05
"""Of the last reading."""


def _growth(places: Iterable[Sequence[int]]) -> Growth | None:
    """Return the growth at the first place where each third of the readings is above the one
    before; what a run allocates once, or at some steps, is none."""
    for sizes in places:
        third = len(sizes) // 3
        parts = sizes[:third], sizes[third:-third], sizes[-third:]
        if third < 2 or sizes[-1] - sizes[0] < LEAST_GROWTH * sizes[-1]:
            continue
        if max(parts[0]) < min(parts[1]) and max(parts[1]) < min(parts[2]):
            return Growth(first=sizes[0], last=sizes[-1], readings=len(sizes))
    return None


_PHASES = (
    ("init", r"initiali[sz]|creating|partition|DeepSpeed Engine|param group|flatten|sanity"),
    ("backward", r"backward|ipg|reduc"),
    ("forward", r"forward"),
    ("step", r"\bstep\b|optimizer|norm|overflow|zero_optimizer"),
)
"""Words of DeepSpeed's captions, the most specific first."""


_ENDED_BEFORE: Mapping[str, str | None] = {
    "forward": None,
    "backward": "forward",
    "step": "backward",
}


def phase_of(caption: str) -> str | None:
    """Return the phase that a caption ends: "before backward" is the end of forward."""
    before = re.search(r"\bbefore (forward|backward|step)\b", caption, re.IGNORECASE)
    if before is not None:
        return _ENDED_BEFORE[before[1].lower()]
    for phase, words in _PHASES:
        if re.search(words, caption, re.IGNORECASE):
            return phase
    return None


_TRIED = re.compile(rf"CUDA out of memory\. Tried to allocate {_SIZE}")
_PARTS: Mapping[str, tuple[re.Pattern[str], ...]] = {
    "capacity": (
        re.compile(rf"total capacity of {_SIZE}"),
        re.compile(rf"{_SIZE} total capacity"),
    ),
    "allocated": (
        re.compile(rf"Of the allocated memory {_SIZE}"),
        re.compile(rf"{_SIZE} already allocated"),
    ),
    "reserved": (re.compile(rf"{_SIZE} reserved in total"),),
}
_FRAMES = (
    ("backward", r"in backward\b|\.backward\(|_engine_run_backward|run_backward"),
    (
        "init",
        r"deepspeed\.initialize|in initialize\b|_configure_(?:zero_)?optimizer|"
        r"_configure_distributed_model|initialize_optimizer_states|from_pretrained",
    ),
    ("step", r"in (?:take_model_)?step\b|_optimizer_step|\.step\("),
    ("forward", r"in forward\b|_call_impl"),
)
"""Traceback frames that identify the phase."""


def phase_of_frames(frames: str) -> str | None:
    """Return the phase of the innermost known frame of a traceback."""
    return next((phase for phase, words in _FRAMES if re.search(words, frames)), None)


def _out_of_memory(lines: list[str]) -> OutOfMemory | None:
    """Return the first out-of-memory error; later ones follow from it."""
    for place, line in enumerate(lines):
        tried = _TRIED.search(line)
        if tried is None:
            continue
        message = " ".join(lines[place : place + 3])
        parts = {
            name: next((_bytes(hit) for pattern in kinds if (hit := pattern.search(message))), None)
            for name, kinds in _PARTS.items()
        }
        frames = "\n".join(lines[max(0, place - 120) : place])
        return OutOfMemory(tried=_bytes(tried), phase=phase_of_frames(frames), **parts)
    return None


def _bytes(hit: re.Match[str]) -> int:
    return int(float(hit[1]) * _UNITS[hit[2]])


def _config(text: str) -> Mapping[str, Any] | None:
    """Return the last ``json = {...}`` dump of DeepSpeed, which spans several lines."""
    for hit in reversed(list(_JSON.finditer(text))):
        try:
            value, _ = json.JSONDecoder().raw_decode(text, hit.start(1))
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
    return None


_STAGE = re.compile(r"zero_optimization_stage ?\.* ?[:=]? ?([0-3])\b")


def _stage(config: Mapping[str, Any] | None, text: str) -> int | None:
    """Return the ZeRO stage of the dumped config, or of the list of settings."""
    stage = value_at(config, STAGE, None) if config is not None else None
    return stage if type(stage) is int else _count(_STAGE, text)


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    """Return the group that took part in the first match."""
    hit = pattern.search(text)
    return next(filter(None, hit.groups()), None) if hit else None


def _count(pattern: re.Pattern[str], text: str) -> int | None:
    """Return the number in the first match."""
    found = _first(pattern, text)
    return int(found) if found else None
