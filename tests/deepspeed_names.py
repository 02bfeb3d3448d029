"""The names below ``deepspeed`` that public programs use: collected, judged, and put on a page.

python -m tests.deepspeed_names record transformers=PATH@5.23.0 trl=PATH@f2cd57710 ...
python -m tests.deepspeed_names page

``record`` reads sources and asks the installed DeepSpeed which of the names it has; what it writes
is all that the page and the tests need.
"""

import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from textwrap import wrap
from typing import Any

from dsengine.deepspeed.refusals import refusal

RECORD = Path(__file__).parent / "oracle" / "deepspeed_names.json"
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "deepspeed-names.md"
NOT_OF_THE_PROGRAM = {"tests", "test", "docs", "build"}


@dataclass(frozen=True, slots=True)
class Used:
    """A name, ``zero.Init`` for ``deepspeed.zero.Init``, and who uses it."""

    name: str
    programs: list[str]
    in_deepspeed: bool
    """Whether the release that was asked still has it."""


def names_in(source: str) -> set[str]:
    """Every name below ``deepspeed`` that a file imports, or reaches by attributes."""
    tree = ast.parse(source)
    bound: dict[str, str] = {}
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                package, _, rest = each.name.partition(".")
                if package == "deepspeed":
                    used.add(rest)
                    bound[each.asname or package] = rest if each.asname else ""
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            package, _, rest = node.module.partition(".")
            if package == "deepspeed":
                for each in node.names:
                    name = rest if each.name == "*" else _below(rest, each.name)
                    used.add(name)
                    bound[each.asname or each.name] = name
    return (used | {name for node in ast.walk(tree) if (name := _reached(node, bound))}) - {""}


def _reached(node: ast.AST, bound: dict[str, str]) -> str | None:
    """``zero.Init`` of an expression ``deepspeed.zero.Init``; of modules alone, not of classes."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not parts or not isinstance(node, ast.Name) or node.id not in bound:
        return None
    above = bound[node.id]
    if above and above.rpartition(".")[2][:1].isupper():
        return None
    name = above
    for part in reversed(parts):
        name = _below(name, part)
        if part[:1].isupper():
            break
    return name


def _below(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part


def verdict(used: Used) -> tuple[str, str]:
    """What becomes of the name under dsengine, and why: imported and reached, as programs do."""
    package, _, leaf = f"dsengine.{used.name}".rpartition(".")
    words = (refusal(used.name) or "").partition(": ")[2]
    said: list[str] = []
    for attempt in (f"import dsengine; dsengine.{used.name}", f"from {package} import {leaf}"):
        try:
            exec(attempt, {})
        except (ImportError, AttributeError) as error:
            said.append(str(error))
        else:
            return "offered", ""
    if words and any(words in each for each in said):
        return "refused", words
    return ("missing", "") if used.in_deepspeed else ("gone", "DeepSpeed has it no longer")


def recorded() -> tuple[dict[str, str], list[Used]]:
    """The programs with what was read of them, and the names."""
    data = json.loads(RECORD.read_text("utf-8"))
    return data["programs"], [Used(**each) for each in data["names"]]


def record(programs: dict[str, tuple[Path, str]]) -> None:
    users: dict[str, set[str]] = defaultdict(set)
    for program, (root, _) in programs.items():
        for path in root.rglob("*.py"):
            if not NOT_OF_THE_PROGRAM & set(path.relative_to(root).parts[:-1]):
                for name in names_in(path.read_text("utf-8", errors="replace")):
                    users[name].add(program)
    names = [
        {"name": name, "programs": sorted(users[name]), "in_deepspeed": _is_real(name)}
        for name in sorted(users)
    ]
    read = {program: version for program, (_, version) in programs.items()}
    RECORD.write_text(json.dumps({"programs": read, "names": names}, indent=1) + "\n", "utf-8")


def _is_real(name: str) -> bool:
    """Whether the installed DeepSpeed has the name, in a module that can be imported or not."""
    holder: Any = import_module("deepspeed")
    parts = name.split(".")
    for depth, part in enumerate(parts, 1):
        try:
            holder = getattr(holder, part, None) or import_module(
                ".".join(["deepspeed", *parts[:depth]])
            )
        except ModuleNotFoundError as error:
            return not (error.name or "").startswith("deepspeed")
        except Exception:
            return True
    return True


def page() -> str:
    """The page: each name with its users and what becomes of it."""
    programs, names = recorded()
    rows: dict[str, list[str]] = defaultdict(list)
    for used in names:
        kind, why = verdict(used)
        users = ", ".join(used.programs)
        rows[kind].append(f"| `{used.name}` | {users} |" + (f" {why} |" if why else ""))
    read = ", ".join(f"{program} {version}" for program, version in programs.items())
    lines = [
        "# Names that programs import from deepspeed",
        "",
        *wrap(f"Read in the sources of {read}, their tests left out.", 100),
        "",
        "Under `dsengine.as_deepspeed`, and below `dsengine` itself, each of them is what it is in",
        "DeepSpeed, or is refused with what to do instead. Written by",
        "`python -m tests.deepspeed_names page`.",
        "",
    ]
    for kind, title, columns in SECTIONS:
        if rows[kind]:
            head = ["name below `deepspeed`", "used by", *columns]
            lines += [f"## {title}: {len(rows[kind])}", "", "| " + " | ".join(head) + " |"]
            lines += ["|" + " --- |" * len(head), *rows[kind], ""]
    return "\n".join(lines)


SECTIONS = (
    ("missing", "Missing", ()),
    ("offered", "Offered", ()),
    ("refused", "Refused, in words", ("instead",)),
    ("gone", "No longer in DeepSpeed", ("why",)),
)


def _arguments(given: list[str]) -> Iterator[tuple[str, tuple[Path, str]]]:
    for each in given:
        program, _, place = each.partition("=")
        path, _, version = place.rpartition("@")
        yield program, (Path(path), version)


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(dict(_arguments(sys.argv[2:])))
    else:
        PAGE.write_text(page(), "utf-8")
