"""Check many files, in this process or in several; the reports are equal and in the same order."""

import os
import sys
from collections.abc import Iterator, Sequence

from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.neighbours import Neighbours
from dsconfig.project.targets import STDIN, Target
from dsconfig.project.validator import Validator
from dsconfig.report import FileReport, Report

with lazy_imports():
    from dsconfig.project import workers

SEQUENTIAL_BELOW = 300
"""Files below which starting processes takes about as long as checking the files."""


def default_jobs(files: int) -> int:
    """Return the number of processes for a number of files: one, or one per usable core."""
    return 1 if files < SEQUENTIAL_BELOW else _usable_cores()


def _usable_cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_all(chosen: Sequence[Target], validator: Validator, jobs: int) -> Iterator[FileReport]:
    """Yield a report per target, in order, computed by ``jobs`` processes.

    Standard input is read by this process. Raises the exception of the first target that has one.
    """
    own = validator._replace(neighbours=Neighbours())
    files = [target for target in chosen if target.source != STDIN]
    if jobs == 1 or len(files) < 2:
        yield from (own.check(target) for target in chosen)
        return
    # The baseline counts what it suppresses, so it is applied here.
    baseline, unfiltered = own.baseline, validator._replace(baseline=None)
    with workers.reports(files, unfiltered, jobs) as reports:
        for target in chosen:
            if target.source == STDIN:
                yield own.check(target)
                continue
            found = next(reports)
            if baseline is not None:
                new = baseline.new(found.file, found.report.diagnostics)
                found = found._replace(report=Report(new))
            yield found
