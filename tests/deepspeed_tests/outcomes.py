"""What became of DeepSpeed's tests: one kind for each, of what the plugin has written down."""

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = {
    "passed": "",
    "refused": "what the test is about is refused by design",
    "private": "the test reaches into parts that only DeepSpeed's own classes have",
    "failed": "",
    "skipped": "more than two ranks, a card, or a package that is not there",
}
_NAMES = ("MissingNameError", "AttributeError", "ImportError", "ModuleNotFoundError")
_NOT_BUILT = re.compile(r"not built|not supported|dsengine has no |a plan for it is refused")
_NO_LAUNCHER = re.compile(r"deepspeed: No such file|No such file or directory: 'deepspeed'")
_NO_COUNTERPART = re.compile(r"does not implement deepspeed\.(\S+): (.*)", re.DOTALL)
_PLACEHOLDERS = ("deepspeed_tests.placeholders", "'_Placeholder'", "not _Placeholder")
_ATTRIBUTE = re.compile(r"has no attribute '(\w+)'")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one test, whatever its parameters: the worst of those that were run."""

    kind: str
    why: str = ""
    words: str = ""
    """Of a failure that was judged to be of another kind: how the test has failed."""


def read(told: Path) -> dict[str, Outcome]:
    """By name, the outcome of each test that ``told`` tells of."""
    variants: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in told.read_text("utf-8").splitlines():
        each = json.loads(line)
        variants[each["test"].partition("[")[0]].append(each)
    return {name: _worst(those) for name, those in sorted(variants.items())}


def _worst(variants: list[dict[str, Any]]) -> Outcome:
    outcomes = {each["outcome"] for each in variants}
    if "failed" not in outcomes:
        return Outcome("passed" if "passed" in outcomes else "skipped")
    return _of_failure(next(e for e in variants if e["outcome"] == "failed")["failure"])


def _of_failure(failure: dict[str, Any]) -> Outcome:
    words, kind = failure["message"], failure["type"].rpartition(".")[2]
    if found := _NO_COUNTERPART.search(words):
        return Outcome("refused", found[2].split("\n")[0])
    if _NO_LAUNCHER.search(words):
        return Outcome("refused", "start with torchrun, mpirun, srun, or dsconfig run")
    of_config = kind == "DeepSpeedConfigError" or "this config cannot be run" in words
    if of_config and _NOT_BUILT.search(words):
        told = re.search(r"DSC\d+ (/\S+):", words)
        return Outcome("refused", f"`{told[1][1:].replace('/', '.')}`" if told else "")
    is_of_nothing = words.startswith("'NoneType' object")
    of_names = kind in _NAMES or (kind == "Collection" and any(each in words for each in _NAMES))
    if (of_names and not is_of_nothing) or any(each in words for each in _PLACEHOLDERS):
        attribute = _ATTRIBUTE.search(words)
        return Outcome("private", attribute[1] if attribute else _name_in(words))
    return Outcome(
        "failed", f"{kind}: {words.strip().splitlines()[0] if words.strip() else ''}"[:160]
    )


def _name_in(words: str) -> str:
    for pattern in (
        r"deepspeed\.([\w.]+) is not there",
        r"cannot import name '(\w+)'",
        r"No module named '(?:deepspeed|dsengine)\.([\w.]+)'",
        r"placeholders\.(\w+)",
    ):
        if found := re.search(pattern, words):
            return found[1]
    return words.strip().splitlines()[0][:80]
