"""Old-style words stay out of messages, first docstring lines and test names."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("dsconfig", "engine/dsengine")
DOCUMENTED = (*SOURCES, "examples", "benchmarks")

PHRASES = {
    r"mends?|mended|mending": "fix",
    r"told|tells?": "reported, prints, specified",
    r"nobody|somebody|whoever": "name the program, or use the passive",
    r"gravest|graver": "most severe",
    r"leanest": "smallest footprint",
    r"awake|asleep|sleeps?": "applicable",
    r"without a word": "silently",
    r"in words": "as text",
    r"at rest": "stored",
    r"takes? in hand": "loads",
    r"says|said|saying": "states, prints, raises",
    r"hears?|heard": "receives, reads",
    r"asked for|asks for|asks": "requested, requires",
    r"goes on|went on": "continues",
    r"(?<!there )is no(?! longer)": "is not a",
    r"has to have|have to have": "required",
    r"judged|judges?|judging": "checked",
    r"belongs to whom|by what is": "use a noun",
    r"what has to": "required",
    r"lies in|lies beside|lies behind": "is in",
    r"stands (?:in|beside|at|for|where)": "is",
    r"comes? about": "is computed",
    r"give or take": "±",
    r"living|departed|mortal": "active, offloaded, versioned",
    r"by hand": "manually",
    r"main memory": "host memory",
    r"moved off": "offloaded",
    r"lets go|let go|gives back|give back": "releases",
    r"in reach|out of reach": "available",
    r"whole (?:tensor|parameter|weight|gradient|model)s?": "full, unsharded",
    r"remarks?": "comment",
    r"every \w+'s fate|fate of": "how it is handled",
}
"""Old-style word or phrase (regular expression), and the plain English for it."""
OLD_STYLE = re.compile(rf"(?<![\w`./-])(?:{'|'.join(PHRASES)})(?![\w`/-])", re.IGNORECASE)

TEST_NAMES = re.compile(
    r"_(?:mend|mends|mended|told|tells|tell|nobody|somebody|says|said|gravest|leanest|awake|asleep"
    r"|wakes|hears|asks|asked|judged|judges|goes_on|is_no|stands|lies|without_a_word|by_hand)(?=_|$)"
)

ALLOWED = {"expected ignore or remarks": "`remarks` is a key of the `$dsconfig` block"}
"""Excerpt of an accepted line, and the reason."""


class Passage(NamedTuple):
    """A piece of text and its location."""

    file: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}: {self.text.strip()}"


def _python_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


@cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


@pytest.fixture(scope="module", autouse=True)
def forget_parsed_files() -> Iterator[None]:
    """Free a million objects, which would slow down garbage collection in other tests."""
    yield
    _parsed.cache_clear()


def _docstrings(tree: ast.AST) -> set[int]:
    """Return the ids of nodes that are docstrings, including those of attributes."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def messages(file: Path) -> Iterator[Passage]:
    """Yield string constants that contain a space and are not docstrings."""
    tree = _parsed(file)
    documentation = _docstrings(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in documentation:
            continue
        if isinstance(node.value, str) and " " in node.value.strip():
            yield Passage(file, node.lineno, node.value)


def first_docstring_lines(file: Path) -> Iterator[Passage]:
    """Yield the first line of every docstring."""
    tree = _parsed(file)
    for node in ast.walk(tree):
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and (text := ast.get_docstring(node)):
            yield Passage(file, node.body[0].lineno, text.partition("\n")[0])


def names_of_tests(file: Path) -> Iterator[Passage]:
    """Yield the names of test functions."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield Passage(file, node.lineno, node.name)


def _violations(passages: Iterator[Passage], pattern: re.Pattern[str]) -> str:
    return "\n".join(
        f"{passage}   [{match[0]}]"
        for passage in passages
        if (match := pattern.search(passage.text))
        and not any(excerpt in passage.text for excerpt in ALLOWED)
    )


def test_messages_contain_no_old_style_words() -> None:
    passages = (found for file in _python_files(*SOURCES) for found in messages(file))
    violations = _violations(passages, OLD_STYLE)
    assert not violations, violations


def test_docstrings_start_without_old_style_words() -> None:
    passages = (
        found for file in _python_files(*DOCUMENTED) for found in first_docstring_lines(file)
    )
    violations = _violations(passages, OLD_STYLE)
    assert not violations, violations


def test_test_names_contain_no_old_style_words() -> None:
    passages = (found for file in _python_files("tests") for found in names_of_tests(file))
    violations = _violations(passages, TEST_NAMES)
    assert not violations, violations


def test_patterns_match_old_style_and_accept_plain_english() -> None:
    for old in ("mend the key", "the log tells", "ignored without a word", "x is no JSON"):
        assert OLD_STYLE.search(old), old
    for plain in ("fix the key", "is no longer read", "the amendment", "`told` is a key"):
        assert not OLD_STYLE.search(plain), plain
    assert TEST_NAMES.search("test_what_is_told") and not TEST_NAMES.search("test_what_is_printed")


if __name__ == "__main__":
    print(_violations((p for f in _python_files(*SOURCES) for p in messages(f)), OLD_STYLE))
    documented = _python_files(*DOCUMENTED)
    print(_violations((p for f in documented for p in first_docstring_lines(f)), OLD_STYLE))
    print(_violations((p for f in _python_files("tests") for p in names_of_tests(f)), TEST_NAMES))
