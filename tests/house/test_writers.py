"""Foreign text enters a language only through a writer, and a terminal only through print_text."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "dsconfig"
FILES = sorted(path for path in ROOT.rglob("*.py") if path.name != "writers.py")
ENGINE = ROOT.parent / "engine" / "dsengine"
STDERR = {"stderr.py", "startup/path/sitecustomize.py"}
"""The files of the engine that print to stderr; the second runs without dsconfig."""
OWN_TEXT = ("reference/", "planner/coverage/page.py", "generate.py", "checks/page.py")
"""Pages that consist of text of the project."""
WRITERS = {"shlex", "html", "xml", "tomli_w", "pprint"}
"""Modules that quote."""
QUOTING = {"safe_dump", "dump", "quoteattr", "quote_plus", "pformat", "echo", "secho"}
"""Functions that quote or print."""
PRINTING = {"commands/printing.py", "commands/run_display.py", "generate.py"}
LANGUAGES = re.compile(r"(?:^|\n)\s*(?:#|//) ?$|::(?:error|warning|notice|debug) |</?\w+>$|`$")
"""How text before a placeholder ends, if the placeholder is a comment, a command, or markup."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def violations(path: Path) -> Iterator[str]:
    name = name_of(path)
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (
                    f"{name}:{node.lineno}: import {each.name}"
                    for each in names
                    if each.name.partition(".")[0] in WRITERS
                )
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in WRITERS:
                yield f"{name}:{node.lineno}: from {module}"
            case ast.Attribute(attr=attribute) if attribute in QUOTING and name not in PRINTING:
                yield f"{name}:{node.lineno}: {attribute}"
            case ast.Call(func=ast.Name(id="print")) if name not in PRINTING:
                yield f"{name}:{node.lineno}: print"
            case ast.JoinedStr() if not name.startswith(OWN_TEXT):
                yield from (f"{name}:{node.lineno}: {each}" for each in quoted_elsewhere(node))


def quoted_elsewhere(text: ast.JoinedStr) -> Iterator[str]:
    """Yield the placeholders after a mark of another language that are not the call of a writer."""
    for before, part in zip(text.values, text.values[1:], strict=False):
        if isinstance(before, ast.Constant) and isinstance(part, ast.FormattedValue):
            follows_mark = LANGUAGES.search(str(before.value)) is not None
            if follows_mark and "writers." not in ast.unparse(part.value):
                yield ast.unparse(text)


def stderr_lines(path: Path) -> Iterator[int]:
    """Yield the lines that print or write to stderr."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name, *_ = ast.unparse(node).partition("(")
            targets = [ast.unparse(each.value) for each in node.keywords if each.arg == "file"]
            if name.endswith("stderr.write") or (name == "print" and "sys.stderr" in targets):
                yield node.lineno


def test_engine_prints_errors_in_one_place() -> None:
    files = {path.relative_to(ENGINE).as_posix(): path for path in ENGINE.rglob("*.py")}
    assert {name for name, path in files.items() if any(stderr_lines(path))} == STDERR


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_file_quotes_with_a_writer(path: Path) -> None:
    assert not [*violations(path)]


@pytest.mark.parametrize(
    "code",
    [
        "import shlex",
        "from html import escape",
        "yaml.safe_dump(entries)",
        "print(name)",
        "typer.echo(name)",
        'f"# {name}"',
        'f"run `dsconfig {file}`, or `{file}`"',
        'f"<b>{name}</b>"',
    ],
)
def test_other_quoting_is_found(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "some.py").write_text(code)
    assert [*violations(tmp_path / "some.py")]
