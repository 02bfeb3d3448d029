"""``dsconfig doctor``: what this machine has, and what of it will get in the way of training."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import dsconfig
from dsconfig.commands import inference, options
from dsconfig.commands.errors import usage
from dsconfig.commands.text_table import fitted
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Severity
from dsconfig.report.render.terminal import look_of, paint, visible
from dsconfig.report.sizes import GIB, both

with lazy_imports():
    import subprocess

    from dsconfig.commands import run_logs
    from dsconfig.commands.validation import validator
    from dsconfig.facts import gathering, machine, run_log

if TYPE_CHECKING:
    from dsconfig.runtimes.base import Runtime

PACKAGES = ("torch", "deepspeed", "transformers", "accelerate", "safetensors", "pydantic", "typer")
NEEDED_TORCH = (2, 11)
LEFT = 24
"""Columns of state and subject."""
SMALL_SHARED_MEMORY = GIB
"""Below this, data loaders with several workers die of a bus error (bytes)."""


class State(StrEnum):
    GOOD = "ok"
    NOTE = "note"
    BAD = "problem"


STYLES = {State.GOOD: "good", State.NOTE: "doubtful", State.BAD: Severity.ERROR}


@dataclass(frozen=True, slots=True)
class Finding:
    state: State
    subject: str
    text: str


def doctor(
    config: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", help="A config, judged for the releases installed here."),
    ] = None,
    log: Annotated[
        Path | None, typer.Option(metavar="TRAIN.log", help="Look at what a run printed instead.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure memory, and the way to a card: some seconds.")
    ] = False,
    nvme: Annotated[
        str | None, typer.Option(metavar="DIRECTORY", help="Measure the disk below it, too.")
    ] = None,
) -> None:
    """Look at this machine: packages, cards, memory, limits; say what to mend.

    --measure and --nvme measure what offloading depends on; estimate --measured-here uses it.

    With a config: what the releases installed here make of it, known faults among it. With --log:
    read what a run printed, its memory by phase, and where it ran out of it.
    """
    if log is not None:
        with usage():
            run_logs.print_log(run_log.from_path(log))
        return
    look = look_of(sys.stdout)
    worst = State.GOOD
    about_config = judged(config) if config is not None else iter(())
    rates = speeds(nvme) if measure or nvme is not None else iter(())
    for finding in chain(findings(), rates, about_config):
        mark = paint(f"{finding.state:<7}", STYLES[finding.state], look)
        left = max(LEFT, len(f"{finding.state:<7}  {finding.subject} "))
        text = fitted(" " * left + finding.text).lstrip()
        print(f"{mark}  {visible(f'{finding.subject:<14} {text}')}")
        worst = State.BAD if State.BAD in (worst, finding.state) else worst
    if worst is State.BAD:
        raise typer.Exit(1)


def findings() -> Iterator[Finding]:
    """Everything found, in a fixed order."""
    yield Finding(State.GOOD, "python", f"{platform.python_version()} on {platform.machine()}")
    yield from packages()
    yield from cards()
    yield from memory()
    yield from limits()


def judged(config: str) -> Iterator[Finding]:
    """What the installed releases make of a config. Raises UsageError for one that is not there."""
    document = options.load(config)
    inferred = inference.program(None, None, document=document, source=config)
    program = inferred.runtime
    if program.release:
        yield from _release_judged(program)
    # Faults are known of these alone.
    releases = {name: found for name in gathering.PROGRAMS if (found := installed(name))}
    facts = dsconfig.gather(releases=releases)
    report = dsconfig.validate(document, facts, runtime=program)
    unsaid = validator.ONLY_IF_SPECIFIED if inferred.found else ()
    told = [found for found in report.diagnostics if found.code not in unsaid]
    for found in told:
        grave = found in report.errors
        text = f"{found.code} {found.message}" + (f"; {found.help}" if found.help else "")
        yield Finding(State.BAD if grave else State.NOTE, found.pointer or "the config", text)
    if not told:
        yield Finding(State.GOOD, "the config", f"nothing to mend for {program.described}")


def installed(package: str) -> str | None:
    """The release that is installed here."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _release_judged(program: "Runtime") -> Iterator[Finding]:
    """Where the program installed is of another release than the one that is replayed."""
    found = installed(program.name)
    if found and found != program.release and not found.startswith(f"{program.release}."):
        text = f"{found} is installed; configs are judged as {program.release} reads them"
        yield Finding(State.NOTE, program.name, text)


def packages() -> Iterator[Finding]:
    for name in PACKAGES:
        found = installed(name)
        if found is None:
            hint = " (pip install 'dsconfig-zero[engine]')" if name == "torch" else ""
            yield Finding(State.NOTE, name, f"not installed{hint}")
            continue
        numbers = tuple(int(part) for part in found.split("+")[0].split(".")[:2] if part.isdigit())
        if name == "torch" and numbers < NEEDED_TORCH:
            wanted = ".".join(map(str, NEEDED_TORCH))
            yield Finding(State.BAD, name, f"{found}; the engine needs {wanted} or newer")
        else:
            yield Finding(State.GOOD, name, found)


def cards() -> Iterator[Finding]:
    """NVIDIA cards as the driver reports them; no framework is loaded."""
    program = shutil.which("nvidia-smi")
    if program is None:
        yield Finding(State.NOTE, "accelerator", "no nvidia-smi: CPU only (backend gloo)")
        return
    query = [program, "--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader"]
    result = subprocess.run(query, capture_output=True, text=True, timeout=30)
    if result.returncode != 0:
        yield Finding(State.BAD, "accelerator", f"nvidia-smi failed: {result.stderr.strip()}")
    for line in result.stdout.splitlines():
        yield Finding(State.GOOD, "accelerator", line.strip())


def memory() -> Iterator[Finding]:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield Finding(State.GOOD, "host memory", f"{both(pages)}, {os.cpu_count()} cores")
    shared = Path("/dev/shm")
    if shared.is_dir():
        free = shutil.disk_usage(shared).free
        state = State.NOTE if free < SMALL_SHARED_MEMORY else State.GOOD
        hint = "; loader workers may die: start the container with --shm-size 8g"
        text = f"{both(free)} free in /dev/shm"
        yield Finding(state, "shared memory", text + (hint if state is State.NOTE else ""))


def speeds(nvme: str | None) -> Iterator[Finding]:
    """What was measured of this machine. Raises UsageError, as ``options.measured_here``."""
    host = machine.HostFacts(nvme_path=nvme)
    for subject, text in options.measurements(options.measured(host)):
        yield Finding(State.GOOD, subject, text)


def limits() -> Iterator[Finding]:
    """Limits of the shell that bite: locked memory (pinned buffers), open files."""
    try:
        import resource
    except ImportError:
        return
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if locked not in (resource.RLIM_INFINITY, -1) and locked < GIB:
        text = f"{locked // 1024} KiB of locked memory; raise it with ulimit -l unlimited"
        yield Finding(State.NOTE, "ulimit -l", text + " before offloading with pin_memory")
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files < 4096:
        yield Finding(State.NOTE, "ulimit -n", f"{files} open files; raise it with ulimit -n 65536")
