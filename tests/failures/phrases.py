"""Check that released packages contain the phrases of the signatures that name them.

    PYTHONPATH=tests python -m failures.phrases [--record]

Downloads the newest known release of each package, reads the string constants of its sources with
``ast``, and prints the signatures whose phrases do not occur in the file that they name; exit
code 1 if there are any. ``--record`` writes where each was found to
``tests/oracle/failures/phrases.json``.

    PYTHONPATH=tests python -m failures.phrases deepspeed==0.19.9[=FOLDER] ...

Adds the checks of a release (each raise and assert) to ``dsconfig/failures/checks.txt``: of the
package in a folder, or downloaded; releases in their order.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import releases
from dsconfig.failures.explanation import CHECKS, check_key
from dsconfig.failures.signature import Signature, signatures
from dsconfig.schema.version import PUBLISHED, Version
from release_facts import PROGRAMS

RECORD = Path(__file__).parents[1] / "oracle" / "failures" / "phrases.json"
PREFIX = "package "
SHORTEST = 8
"""Letters of a constant that identifies a phrase, as values are inserted between constants."""
NAME = re.compile(r"\w*(?:[a-z0-9]_|[a-z][A-Z]|[a-z]\d)\w*")
"""A name that no other word is: with an underscore, a capital or a digit inside."""


def named() -> Iterator[tuple[Signature, str, str]]:
    """Yield each signature that names a file of a package that is checked, with both."""
    for signature in signatures():
        package, _, file = signature.source.removeprefix(PREFIX).partition("/")
        if signature.source.startswith(PREFIX) and package in PROGRAMS:
            yield signature, package, file


class Texts(NamedTuple):
    """What a Python file contains: its strings (of an f-string, the parts), names, and functions
    as frames of a traceback."""

    strings: frozenset[str]
    names: frozenset[str]
    frames: tuple[str, ...]


def texts_of(path: Path, file: str) -> Texts:
    if not path.is_file():
        return Texts(frozenset(), frozenset(), ())
    source = path.read_text("utf-8")
    nodes = [*ast.walk(ast.parse(source))]
    values = (node.value for node in nodes if isinstance(node, ast.Constant))
    whole = [value for value in values if isinstance(value, str)]
    strings = (*whole, *(value.strip(" \"'`().:\n") for value in whole))
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef))
    frames = (
        f"{file} in {node.name}: {line.strip()}"
        for node in functions
        for line in (ast.get_source_segment(source, node) or "").splitlines()
    )
    return Texts(frozenset(strings), frozenset(NAME.findall(source)), tuple(frames))


def occurs(phrase: str, texts: Texts) -> bool:
    """Return whether a phrase, a long constant part of it, or a name in it is in a file."""
    is_text = any(
        phrase in text or (len(text) >= SHORTEST and text in phrase) for text in texts.strings
    )
    return is_text or not texts.names.isdisjoint(NAME.findall(phrase))


def is_found(signature: Signature, texts: Texts) -> bool:
    """Return whether a file has a phrase of a signature, or a place that its frames describe."""
    pattern = signature.frame or signature.frames
    place = re.compile(pattern) if pattern else None
    at_place = place is not None and any(map(place.search, texts.frames))
    return at_place or any(occurs(phrase, texts) for phrase in signature.phrases)


def release_for(signature: Signature, package: str) -> str:
    """Return the newest known release that a signature is for."""
    bound = re.search(r"<(\d[\d.]*)", signature.releases.get(package, ""))
    if bound is None:
        return PROGRAMS[package].known
    limit = Version.parse(bound[1])
    before = [each for each in PUBLISHED if each < limit]
    return str(limit._replace(patch=limit.patch - 1) if limit.patch else max(before))


def places() -> dict[str, dict[str, str] | None]:
    """Return where the phrases of each signature occur; None for those that do not."""
    with TemporaryDirectory() as folder:

        @cache
        def package(name: str, release: str) -> Path:
            return releases.fetch(name, release, Path(folder))

        result: dict[str, dict[str, str] | None] = {}
        for signature, name, file in named():
            release = release_for(signature, name)
            texts = texts_of(package(name, release) / file, f"{name}/{file}")
            place = {"release": f"{name} {release}", "file": file}
            result[signature.name] = place if is_found(signature, texts) else None
    return result


def checks_in(package: str, folder: Path) -> set[str]:
    """Return the keys of what a package raises and asserts where a traceback shows the text: the
    first line of the statement."""
    return {
        check_key(package, function, line)
        for path in folder.rglob("*.py")
        for function, line in _check_lines(path.read_text("utf-8", "replace"))
    }


def _check_lines(source: str) -> Iterator[tuple[str, str]]:
    """Yield the function and the first line of each raise and assert."""
    try:
        pending: list[tuple[ast.AST, str]] = [(ast.parse(source), "<module>")]
    except SyntaxError:
        return
    lines = source.splitlines()
    while pending:
        node, function = pending.pop()
        if isinstance(node, (ast.Raise, ast.Assert)):
            line = lines[node.lineno - 1].strip()
            if not line.endswith("(") and line.count(" "):
                yield function, line
        inner = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        name = node.name if inner else function
        pending += [(child, name) for child in ast.iter_child_nodes(node)]


Spans = dict[str, tuple[str, str]]
"""First and last release of each check, by key, as in ``CHECKS``."""


def with_release(spans: Spans, keys: set[str], package: str, release: str) -> Spans:
    """Return the spans after the next release of a package, which has checks with some keys."""
    open_ends = {last for _, last in spans.values() if last.startswith(f"{package}-")}
    before = next(iter(open_ends), "").partition("-")[2]
    own = {key for key, (_, last) in spans.items() if last in open_ends}
    ended = {key: (spans[key][0], before) for key in own - keys}
    start = (release if before else "-", "")
    added = {key: (spans.get(key, start)[0], f"{package}-{release}") for key in keys}
    return spans | ended | added


def add_checks(arguments: Sequence[str]) -> None:
    """Add releases, given as ``PACKAGE==RELEASE[=FOLDER]``, to the table."""
    rows = (line.split() for line in CHECKS.read_text("utf-8").splitlines())
    spans: Spans = {key: (first, last) for first, last, *keys in rows for key in keys}
    with TemporaryDirectory() as temporary:
        for argument in arguments:
            package, release, *folders = re.split("==?", argument)
            folder = Path(folders[0]) if folders else None
            folder = folder or releases.fetch(package, release, Path(temporary))
            spans = with_release(spans, checks_in(package, folder), package, release)
    by_span: dict[tuple[str, str], list[str]] = {}
    for key, span in spans.items():
        by_span.setdefault(span, []).append(key)
    lines = (" ".join([*span, *sorted(keys)]) for span, keys in sorted(by_span.items()))
    CHECKS.write_text("\n".join(lines) + "\n")


def main() -> int:
    if added := [argument for argument in sys.argv[1:] if "==" in argument]:
        add_checks(added)
        return 0
    found = places()
    missing = sorted(name for name, place in found.items() if place is None)
    print(*(f"{name}: no phrase is in the file that it names" for name in missing), sep="\n")
    print(f"{len(found) - len(missing)} of {len(found)} signatures found")
    if "--record" in sys.argv:
        RECORD.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
