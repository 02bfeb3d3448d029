"""``--baseline``: the findings of an earlier run, which do not count again."""

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from dsconfig.commands.errors import UsageError
from dsconfig.report import Diagnostic

Identity = tuple[str, str, str]
"""File, code and JSON Pointer: what a finding is recognised by in another run."""


def load(path: Path) -> Counter[Identity]:
    """The findings of a report in the json format. Raises UsageError when the file is none."""
    remedy = "make one with `dsconfig validate --output-format json --exit-zero ... > FILE`"
    try:
        data: Any = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"--baseline {path}: {error.strerror}; {remedy}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"--baseline {path} is not JSON; {remedy}") from None
    try:
        return Counter(
            (_portable(file["file"]), found["code"], found["pointer"])
            for file in cast("list[Any]", data["files"])
            for found in file["diagnostics"]
        )
    except (KeyError, TypeError):
        raise UsageError(f"--baseline {path} is no report of dsconfig; {remedy}") from None


def new(known: Counter[Identity], file: str, found: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The findings about a file that the earlier run did not have."""
    left = known.copy()
    fresh: list[Diagnostic] = []
    for diagnostic in found:
        identity = (_portable(file), diagnostic.code, diagnostic.pointer)
        if left[identity] > 0:
            left[identity] -= 1
        else:
            fresh.append(diagnostic)
    return tuple(fresh)


def _portable(file: str) -> str:
    """The same name for the same file, however the command line spelt it."""
    return Path(os.path.normpath(file)).as_posix()
