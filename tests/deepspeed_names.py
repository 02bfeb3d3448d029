"""Names below ``deepspeed`` that public programs use: collection, status, and documentation.

python -m tests.deepspeed_names record transformers=PATH@5.23.0 trl=PATH@f2cd57710 ...
python -m tests.deepspeed_names page

``record`` reads the programs' sources and checks which names the installed DeepSpeed has. The page
and the tests only need its output.
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

from dsconfig.features.deepspeed_names import refusal

RECORD = Path(__file__).parent / "oracle" / "deepspeed_names.json"
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "deepspeed-names.md"
EXCLUDED_FOLDERS = {"tests", "test", "docs", "build"}


@dataclass(frozen=True, slots=True)
class Used:
    """A name (``zero.Init`` for ``deepspeed.zero.Init``) and the programs that use it."""

    name: str
    programs: list[str]
    in_deepspeed: bool
    """Whether the installed release has it."""


def names_in(source: str) -> set[str]:
    """Return all names below ``deepspeed`` that a file imports or accesses as attributes."""
    tree = ast.parse(source)
    bound: dict[str, str] = {}
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package, _, rest = alias.name.partition(".")
                if package == "deepspeed":
                    used.add(rest)
                    bound[alias.asname or package] = rest if alias.asname else ""
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            package, _, rest = node.module.partition(".")
            if package == "deepspeed":
                for alias in node.names:
                    name = rest if alias.name == "*" else _below(rest, alias.name)
                    used.add(name)
                    bound[alias.asname or alias.name] = name
    return (used | {name for node in ast.walk(tree) if (name := _accessed_name(node, bound))}) - {
        ""
    }


def _accessed_name(node: ast.AST, bound: dict[str, str]) -> str | None:
    """Return ``zero.Init`` for ``deepspeed.zero.Init``; for modules only, not for classes."""
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


def status(used: Used) -> tuple[str, str]:
    """Return whether dsengine has the name, and why not, by importing and accessing it."""
    package, _, leaf = f"dsengine.{used.name}".rpartition(".")
    reason = (refusal(used.name) or "").partition(": ")[2]
    errors: list[str] = []
    for attempt in (f"import dsengine; dsengine.{used.name}", f"from {package} import {leaf}"):
        try:
            exec(attempt, {})
        except (ImportError, AttributeError) as error:
            errors.append(str(error))
        else:
            return "supported", ""
    if reason and any(reason in error for error in errors):
        return "refused", reason
    return ("missing", "") if used.in_deepspeed else ("gone", "removed from DeepSpeed")


def recorded() -> tuple[dict[str, str], list[Used]]:
    """Return the programs with their versions, and the names."""
    data = json.loads(RECORD.read_text("utf-8"))
    return data["programs"], [Used(**entry) for entry in data["names"]]


def record(programs: dict[str, tuple[Path, str]]) -> None:
    users: dict[str, set[str]] = defaultdict(set)
    for program, (root, _) in programs.items():
        for path in root.rglob("*.py"):
            if not EXCLUDED_FOLDERS & set(path.relative_to(root).parts[:-1]):
                for name in names_in(path.read_text("utf-8", errors="replace")):
                    users[name].add(program)
    names = [
        {"name": name, "programs": sorted(users[name]), "in_deepspeed": _is_real(name)}
        for name in sorted(users)
    ]
    read = {program: version for program, (_, version) in programs.items()}
    RECORD.write_text(json.dumps({"programs": read, "names": names}, indent=1) + "\n", "utf-8")


def _is_real(name: str) -> bool:
    """Whether the installed DeepSpeed has the name, even if its module cannot be imported."""
    parent: Any = import_module("deepspeed")
    parts = name.split(".")
    for depth, part in enumerate(parts, 1):
        try:
            parent = getattr(parent, part, None) or import_module(
                ".".join(["deepspeed", *parts[:depth]])
            )
        except ModuleNotFoundError as error:
            return not (error.name or "").startswith("deepspeed")
        except Exception:
            return True
    return True


def page() -> str:
    """Return the page: each name with its users and status."""
    programs, names = recorded()
    rows: dict[str, list[str]] = defaultdict(list)
    for used in names:
        kind, why = status(used)
        users = ", ".join(used.programs)
        rows[kind].append(f"| `{used.name}` | {users} |" + (f" {why} |" if why else ""))
    read = ", ".join(f"{program} {version}" for program, version in programs.items())
    lines = [
        "# Names that programs import from deepspeed",
        "",
        *wrap(f"Collected from the sources of {read}, without their tests.", 100),
        "",
        "Under the command `dsengine`, and below the package `dsengine`, each name works as in",
        "DeepSpeed or raises an error that states the alternative. Generated by",
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
    ("supported", "Supported", ()),
    ("refused", "Refused", ("alternative",)),
    ("gone", "Removed from DeepSpeed", ("reason",)),
)


def _parse_arguments(arguments: list[str]) -> Iterator[tuple[str, tuple[Path, str]]]:
    for argument in arguments:
        program, _, source = argument.partition("=")
        path, _, version = source.rpartition("@")
        yield program, (Path(path), version)


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(dict(_parse_arguments(sys.argv[2:])))
    else:
        PAGE.write_text(page(), "utf-8")
