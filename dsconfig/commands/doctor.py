"""``dsconfig doctor``: check this machine for problems that affect training."""

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
from dsconfig import examination, os_errors
from dsconfig.applicable_fixes import ABOUT_THE_SCRIPT
from dsconfig.commands import options
from dsconfig.commands.notes import note
from dsconfig.commands.printing import print_json, print_text
from dsconfig.commands.progress import progress
from dsconfig.commands.text_table import fitted, paragraph
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project import inference
from dsconfig.project.errors import UsageError, usage
from dsconfig.report import Severity
from dsconfig.report.render.terminal import look_of, paint
from dsconfig.report.sizes import GIB, both

with lazy_imports():
    from dsconfig.commands import failed_memory, log_facts, run_logs
    from dsconfig.facts import gathering, machine
    from dsconfig.failures import reading
    from dsconfig.failures import text as log_text
    from dsconfig.project import search

if TYPE_CHECKING:
    from dsconfig.runtimes.base import Runtime
    from dsconfig.source import Document

PACKAGES = ("torch", "deepspeed", "transformers", "accelerate", "safetensors", "pydantic", "typer")
NEEDED_TORCH = (2, 11)
PREFIX = 24
"""Columns of state and subject."""
OUT_OF_MEMORY = "gpu-out-of-memory"
"""Beginning of the signatures for which an estimate states what does not fit."""
SMALL_SHARED_MEMORY = GIB
"""Bytes below which data loader workers may die of a bus error."""


class State(StrEnum):
    GOOD = "ok"
    NOTE = "note"
    BAD = "problem"


STYLES = {State.GOOD: "good", State.NOTE: "doubtful", State.BAD: Severity.ERROR}


@dataclass(frozen=True, slots=True)
class Check:
    state: State
    subject: str
    text: str


def doctor(
    context: typer.Context,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="Config to check, or logs of a failed run (- for stdin, folders) with its config.",
        ),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="TRAIN.log",
            help="Explain why a run failed: its log (- for stdin), those of several ranks (repeat, "
            "or a folder), flight recorder dumps, py-spy stacks. FILE may be a log too.",
        ),
    ] = None,
    redact: Annotated[
        bool,
        typer.Option(
            "--redact",
            help="Mask paths, hosts, addresses, tokens and mail addresses in quoted lines of logs.",
        ),
    ] = False,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure host memory and PCIe bandwidth (a few seconds)."),
    ] = False,
    nvme: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Also measure the NVMe disk of this directory."),
    ] = None,
    runtime: options.RuntimeName = None,
    output_format: options.FullOrJson = "full",
) -> None:
    """Check packages, GPUs, memory and limits of this machine.

    With a config, also check it for the installed releases, including their known bugs.
    With logs, print the first failure of a run, its cause and fix, and the memory readings
    instead; a config is then that of the run, and --runtime selects the program that the fix is
    for (default: the one in the log).
    --measure and --nvme measure the bandwidths that offloading depends on (see estimate
    --measured-here).

    Exit code 1 if there are problems; 0 with logs.
    """
    config, more = sorted_files(files or [])
    if logs := [*(log or []), *more]:
        _explain(logs, config, runtime, output_format, is_redacted=redact)
        return
    is_json = output_format == "json" and options.is_flag(context, "output_format")
    if runtime is not None or is_json or redact:
        raise UsageError(
            "--runtime, --redact and --output-format json require --log, or a log as FILE"
        )
    look = look_of(sys.stdout)
    worst = State.GOOD
    of_config = iter(()) if config is None else config_checks(config, options.load(config))
    rates = speeds(nvme) if measure or nvme is not None else iter(())
    for check in chain(machine_checks(), rates, of_config):
        mark = paint(f"{check.state:<7}", STYLES[check.state], look)
        width = max(PREFIX, len(f"{check.state:<7}  {check.subject} "))
        text = fitted(" " * width + check.text).lstrip()
        print_text(f"{mark}  {check.subject:<14} {text}")
        worst = State.BAD if State.BAD in (worst, check.state) else worst
    if worst is State.BAD:
        raise typer.Exit(1)


def sorted_files(files: list[str]) -> tuple[str | None, list[Path]]:
    """Return the config and the logs among files. Raises UsageError for several configs."""
    logs = [Path(file) for file in files if reading.is_log(Path(file))]
    configs = [file for file in files if Path(file) not in logs]
    if len(configs) > 1:
        raise UsageError(f"one config at a time: {', '.join(configs)} (pass logs with --log)")
    return (configs[0] if configs else None), logs


def _explain(
    logs: list[Path],
    config: str | None,
    runtime: str | None,
    output_format: str,
    *,
    is_redacted: bool = False,
) -> None:
    """Print why a run of a config failed. Raises UsageError for a log that cannot be read."""
    document = None if config is None else options.load(config)
    with usage(), progress("Reading logs"):
        diagnosis = dsconfig.diagnose(*logs, runtime=runtime)
    if config is None:
        config, document = config_beside(logs)
    answer: failed_memory.MemoryAnswer | None = None
    if config is not None and document is not None:
        diagnosis = diagnosis.for_config(config)
        stage = diagnosis.log.stage
        stage = diagnosis.facts["stage"] if stage is None else stage
        names = (str(logs[0]) if len(logs) == 1 else "the log", document.name)
        log_name, config_name = map(log_text.redacted, names) if is_redacted else names
        log_facts.note_other_stage(stage, log_name, document.value, config_name)
        if diagnosis.failures and diagnosis.failures[0].signature.startswith(OUT_OF_MEMORY):
            answer = failed_memory.of_run(config, document, diagnosis.log, logs[0], runtime)
    if is_redacted:
        diagnosis = diagnosis.redacted()
        answer = answer and answer._replace(is_redacted=True)
    if output_format == "json":
        estimate = {} if answer is None else {"estimate": answer.data}
        print_json({**diagnosis.data, **estimate})
        return
    run_logs.print_diagnosis(diagnosis)
    for number, line in enumerate(answer.lines() if answer is not None else ()):
        print_text(("" if number else "\n") + paragraph(line) if number < 2 else line)


def config_beside(logs: list[Path]) -> "tuple[str | None, Document | None]":
    """Return the only config in the folder of the logs, with a note; None without exactly one that
    can be read."""
    folders = {log if log.is_dir() else log.parent for log in logs if str(log) != "-"}
    if len(folders) != 1:
        return None, None
    (folder,) = folders
    try:
        beside = [path for path in sorted(folder.iterdir()) if path.suffix in search.SUFFIXES]
        found = [path for path in beside if os_errors.is_file(path) and search.is_candidate(path)]
        if len(found) != 1:
            return None, None
        document = options.load(str(found[0]))
    except (OSError, UsageError):
        return None, None
    note(f"config: {found[0].name}, the only one beside the log")
    return str(found[0]), document


def machine_checks() -> Iterator[Check]:
    """Yield all checks of the machine."""
    yield Check(State.GOOD, "python", f"{platform.python_version()} on {platform.machine()}")
    yield from packages()
    yield from gpus()
    yield from memory()
    yield from limits()


def config_checks(config: str, document: "Document | None" = None) -> Iterator[Check]:
    """Yield the findings of a config for the installed releases. Raises UsageError."""
    document = options.load(config) if document is None else document
    inferred = inference.target_program(None, None, document=document, source=config)
    program = inferred.runtime
    yield Check(State.GOOD, "target", inferred.headline.removeprefix("target: "))
    if program.release:
        yield from _release_check(program)
    # Only these have known bugs.
    releases = {name: release for name in gathering.PROGRAMS if (release := installed(name))}
    facts = dsconfig.gather(releases=releases)
    report = examination.findings(document, facts, program, program.version)
    omitted = ABOUT_THE_SCRIPT if inferred.inferred_from else ()
    reported = [finding for finding in report.diagnostics if finding.code not in omitted]
    for finding in reported:
        is_error = finding in report.errors
        text = f"{finding.code} {finding.message}" + (f"; {finding.help}" if finding.help else "")
        yield Check(State.BAD if is_error else State.NOTE, finding.pointer or "config", text)
    if not reported:
        yield Check(State.GOOD, "config", "no problems found")


def installed(package: str) -> str | None:
    """Return the installed release of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _release_check(program: "Runtime") -> Iterator[Check]:
    """Yield a note if another release is installed than the one configs are checked for."""
    release = installed(program.name)
    if release and release != program.release and not release.startswith(f"{program.release}."):
        text = f"{release} is installed; configs are checked as read by {program.release}"
        yield Check(State.NOTE, program.name, text)


def packages() -> Iterator[Check]:
    for name in PACKAGES:
        release = installed(name)
        if release is None:
            hint = " (pip install 'dsconfig-zero[engine]')" if name == "torch" else ""
            yield Check(State.NOTE, name, f"not installed{hint}")
            continue
        numbers = tuple(
            int(part) for part in release.split("+")[0].split(".")[:2] if part.isdigit()
        )
        if name == "torch" and numbers < NEEDED_TORCH:
            wanted = ".".join(map(str, NEEDED_TORCH))
            yield Check(State.BAD, name, f"{release}; dsengine requires {wanted} or newer")
        else:
            yield Check(State.GOOD, name, release)


def gpus() -> Iterator[Check]:
    """Yield the NVIDIA GPUs reported by the driver, without importing torch."""
    try:
        lines = machine.nvidia_smi("name,memory.total,compute_cap", "csv,noheader")
    except OSError as error:
        yield Check(State.BAD, "accelerator", f"nvidia-smi failed: {error}")
        return
    if not lines:
        yield Check(State.NOTE, "accelerator", "nvidia-smi lists no GPU: CPU only (backend gloo)")
    for line in lines:
        yield Check(State.GOOD, "accelerator", line.strip())


def memory() -> Iterator[Check]:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield Check(State.GOOD, "host memory", f"{both(pages)}, {os.cpu_count()} cores")
    shared = Path("/dev/shm")
    if shared.is_dir():
        free = shutil.disk_usage(shared).free
        state = State.NOTE if free < SMALL_SHARED_MEMORY else State.GOOD
        hint = "; data loader workers may die: start the container with --shm-size 8g"
        text = f"{both(free)} free in /dev/shm"
        yield Check(state, "shared memory", text + (hint if state is State.NOTE else ""))


def speeds(nvme: str | None) -> Iterator[Check]:
    """Yield measured bandwidths. Raises UsageError as ``options.measured`` does."""
    host = machine.HostFacts(nvme_path=nvme)
    for subject, text in options.measurements(options.measured(host)):
        yield Check(State.GOOD, subject, text)


def limits() -> Iterator[Check]:
    """Yield notes on low shell limits: locked memory (pinned buffers) and open files."""
    try:
        import resource
    except ImportError:
        return
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if locked not in (resource.RLIM_INFINITY, -1) and locked < GIB:
        text = f"{locked // 1024} KiB of locked memory; raise with ulimit -l unlimited"
        yield Check(State.NOTE, "ulimit -l", text + " to offload with pin_memory")
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files < 4096:
        yield Check(State.NOTE, "ulimit -n", f"{files} open files; raise with ulimit -n 65536")
