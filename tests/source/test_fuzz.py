"""No input raises an exception, and all ranges are inside the file."""

import pytest

import dsconfig
from dsconfig import Diagnostic
from dsconfig.report import Position, Range
from dsconfig.source.edit import apply_fixes
from dsconfig.source.positions import LineIndex
from mutants import mutants

SAMPLE = 1000


def ranges(found: Diagnostic) -> list[Range]:
    edits = found.fix.edits if found.fix else ()
    return [place for place in (found.range, *(edit.range for edit in edits)) if place]


def is_inside(lines: LineIndex, place: Position) -> bool:
    if not 1 <= place.line <= len(lines.starts):
        return False
    return 1 <= place.column <= len(lines.line(place.line)) + 1


def check(text: str) -> None:
    document = dsconfig.read(text, name="mutant.json")
    report = dsconfig.validate(document)
    lines = LineIndex(document.text or "")
    for found in report.diagnostics:
        for place in ranges(found):
            assert place.start <= place.end
            assert is_inside(lines, place.start), found
            assert is_inside(lines, place.end), found
    fixes = [found.fix for found in report.diagnostics if found.fix]
    if document.text and fixes:
        apply_fixes(document.text, fixes)


LONG = [pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 5)]
DEEP = [pytest.param(seed, marks=pytest.mark.deep) for seed in range(100, 300)]


@pytest.mark.parametrize("seed", [*range(2), *LONG, *DEEP])
def test_mutants(seed: int) -> None:
    for text in mutants(SAMPLE, seed):
        # A mutant is a text even where a cut left something that could be a path.
        check(f"{text}\n")
