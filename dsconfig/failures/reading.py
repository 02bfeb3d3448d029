"""Read the logs, dumps and stacks of a run, and diagnose it."""

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from dsconfig import os_errors
from dsconfig.facts import run_log
from dsconfig.facts.inputs import FactError
from dsconfig.failures import waiting as waiting_ranks
from dsconfig.failures.diagnosis import Diagnosis, Failure, program_of, separate, stage_of
from dsconfig.failures.scanner import Scan, scan
from dsconfig.failures.signature import Role, signatures
from dsconfig.failures.text import rank_in_name
from dsconfig.failures.waiting import Waiting
from dsconfig.source.file_kinds import SCRIPTS

STDIN = Path("-")
"""Read as a log."""
MOST_FILES = 10_000
PEEK = 1 << 16
"""Bytes that show whether a file is a dump, a stack or a log."""
LOG_SUFFIXES = (".log", ".txt", ".out", ".err", ".gz")
CONFIG_SUFFIXES = (".json", ".jsonc", ".hjson", ".yaml", ".yml", ".py", ".toml", *SCRIPTS)
DEEPEST = 6
"""Levels of folders that are searched for logs."""


def diagnose(paths: Sequence[str | Path], program: str | None = None) -> Diagnosis:
    """Return why a run failed, from the logs of its ranks.

    A folder stands for all files in it, ``-`` for standard input. ``program`` selects the remedies,
    instead of the program that the logs name. Raises FactError for a file that cannot be read.
    """
    scans, states = list[Scan](), list[Waiting]()
    for path in list(_files(paths)):  # all are listed before one is read
        found, log_scan = _read(path)
        states += found
        scans += filter(None, [log_scan])
    log = run_log.from_text("\n".join(line for scan_ in scans for line in scan_.facts))
    releases = dict(log.releases) | ({"deepspeed": log.release} if log.release else {})
    program = program or program_of(scans)
    failures, consequences, recovered = separate(scans, releases, program, log.growth)
    waiting = tuple(waiting_ranks.compare(states))
    if waiting and not any(_is_error(failure) for failure in failures):
        # The stacks explain a timeout.
        failures, consequences = waiting, (*failures, *consequences)
    else:
        failures = (*failures, *waiting)
    return Diagnosis(
        failures=failures,
        consequences=consequences,
        facts=_facts(scans, log, releases, program, recovered)
        | {"waiting": [asdict(state) for state in states]},
        log=log,
    )


def is_log(path: Path) -> bool:
    """Return whether a file of the command line is a log (or a dump) rather than a config."""
    if path == STDIN or path.is_dir() or path.suffix.lower() in LOG_SUFFIXES:
        return True
    try:
        with path.open("rb") as file:
            start = file.read(PEEK)
    except OSError:
        return False
    if waiting_ranks.is_dump(start):
        return True
    return path.suffix.lower() not in CONFIG_SUFFIXES and start.lstrip()[:1] != b"{"


def _is_error(failure: Failure) -> bool:
    """Return whether a failure is an error of a rank rather than a sign of waiting."""
    roles = {signature.name: signature.role for signature in signatures()}
    waits = (Role.TIMEOUT, Role.STUCK, Role.CONSEQUENCE, Role.SILENT)
    return roles.get(failure.signature) not in waits


def _read(path: Path) -> tuple[list[Waiting], Scan | None]:
    """Return what the ranks of a dump or stack wait for, or the scan of a log."""
    if path == STDIN:
        return [], scan(sys.stdin.buffer, "<stdin>", None)
    try:
        with path.open("rb") as file:
            kind = os.fstat(file.fileno()).st_mode
            if stat.S_ISCHR(kind) or stat.S_ISBLK(kind):  # it may never end
                raise FactError("log", f"{path} is a device; pass a file")
            if stat.S_ISREG(kind):
                if states := _states(file, str(path)):
                    return states, None
                file.seek(0)
            return [], scan(file, str(path), rank_in_name(str(path)))
    except OSError as error:
        raise FactError("log", f"{path}: {os_errors.reason(error)}") from error


def _states(file: BinaryIO, name: str) -> list[Waiting]:
    """Return what the ranks of a dump or stack wait for; nothing for a log."""
    start = file.read(PEEK)
    is_dump = waiting_ranks.is_dump(start)
    if not is_dump and not waiting_ranks.is_stack(start):
        return []
    data = start + file.read(waiting_ranks.LARGEST)
    try:
        if is_dump:
            return waiting_ranks.of_dump(data, name)
        return waiting_ranks.of_stack(data.decode("utf-8", "replace"), name)
    except (ValueError, RecursionError):
        return []


def _files(paths: Sequence[str | Path]) -> Iterator[Path]:
    """Yield the files; those of folders in order of their names."""
    count = 0
    for path in map(Path, paths):
        files = list(islice(_below(path), MOST_FILES + 1 - count)) if path.is_dir() else [path]
        count += len(files)
        if count > MOST_FILES:
            raise FactError("log", f"{path}: more than {MOST_FILES:,} files; pass fewer")
        yield from sorted(files)


def _below(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        if len(Path(parent).relative_to(folder).parts) >= DEEPEST:
            folders.clear()
        yield from (path for name in names if (path := Path(parent, name)).is_file())


def _facts(
    scans: Sequence[Scan],
    log: run_log.RunLog,
    releases: dict[str, str],
    program: str | None,
    recovered: list[str],
) -> dict[str, Any]:
    """Return what the logs state about the run."""
    clues = {clue for scan_ in scans for clue in scan_.clues}
    return {
        "files": [
            {"file": scan_.file, "lines": scan_.lines, "rank": scan_.rank} for scan_ in scans
        ],
        "ranks": log.world_size,
        "device": log.device,
        "device_memory_bytes": log.device_memory,
        "out_of_memory": asdict(log.out_of_memory) if log.out_of_memory else None,
        "releases": releases,
        "program": program,
        "stage": stage_of(clues),
        "recognized": sorted({*log.found, *clues}),
        "recovered": recovered,
    }
