"""Classification of the outcomes of DeepSpeed's tests."""

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = {
    "passed": "",
    "refused": "tests a feature that is refused by design",
    "private": "tests internals of DeepSpeed's own classes",
    "failed": "",
    "skipped": "requires more than two ranks, a GPU, or a missing package",
}
_NAMES = ("MissingNameError", "AttributeError", "ImportError", "ModuleNotFoundError")
_UNSUPPORTED = re.compile(r"not built|not supported|dsengine has no |a plan for it is refused")
_NO_LAUNCHER = re.compile(r"deepspeed: No such file|No such file or directory: 'deepspeed'")
_NOT_IMPLEMENTED = re.compile(r"does not implement deepspeed\.(\S+): (.*)", re.DOTALL)
_PLACEHOLDERS = ("deepspeed_tests.placeholders", "'_Placeholder'", "not _Placeholder")
_ATTRIBUTE = re.compile(r"has no attribute '(\w+)'")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The worst outcome among the variants of one test."""

    kind: str
    why: str = ""
    failure: str = ""
    """The failure of a test that was reclassified."""


def read(file: Path) -> dict[str, Outcome]:
    """Return the outcome of each test in ``file`` by name."""
    variants: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in file.read_text("utf-8").splitlines():
        entry = json.loads(line)
        variants[entry["test"].partition("[")[0]].append(entry)
    return {name: _worst(entries) for name, entries in sorted(variants.items())}


def _worst(variants: list[dict[str, Any]]) -> Outcome:
    outcomes = {entry["outcome"] for entry in variants}
    if "failed" not in outcomes:
        return Outcome("passed" if "passed" in outcomes else "skipped")
    return _of_failure(next(e for e in variants if e["outcome"] == "failed")["failure"])


def _of_failure(failure: dict[str, Any]) -> Outcome:
    message, kind = failure["message"], failure["type"].rpartition(".")[2]
    if found := _NOT_IMPLEMENTED.search(message):
        return Outcome("refused", found[2].split("\n")[0])
    if _NO_LAUNCHER.search(message):
        return Outcome("refused", "start with torchrun, mpirun, srun, or dsconfig run")
    is_config_error = kind == "DeepSpeedConfigError" or "this config cannot be run" in message
    if is_config_error and _UNSUPPORTED.search(message):
        key = re.search(r"DSC\d+ (/\S+):", message)
        return Outcome("refused", f"`{key[1][1:].replace('/', '.')}`" if key else "")
    is_none_error = message.startswith("'NoneType' object")
    is_name_error = kind in _NAMES or (
        kind == "Collection" and any(name in message for name in _NAMES)
    )
    if (is_name_error and not is_none_error) or any(text in message for text in _PLACEHOLDERS):
        attribute = _ATTRIBUTE.search(message)
        return Outcome("private", attribute[1] if attribute else _name_in(message))
    return Outcome(
        "failed", f"{kind}: {message.strip().splitlines()[0] if message.strip() else ''}"[:160]
    )


def _name_in(message: str) -> str:
    for pattern in (
        r"deepspeed\.([\w.]+) does not exist",
        r"cannot import name '(\w+)'",
        r"No module named '(?:deepspeed|dsengine)\.([\w.]+)'",
        r"placeholders\.(\w+)",
    ):
        if found := re.search(pattern, message):
            return found[1]
    return message.strip().splitlines()[0][:80]
