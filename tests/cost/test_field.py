"""Published figures of real runs, as docs/internals/memory-validation.md shows them."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from replays import field_measurements as field

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "internals" / "memory-validation.md"


@pytest.fixture(name="held", scope="module")
def _held() -> Mapping[str, Any]:
    path = ROOT / "tests" / "oracle" / "field_measurements.json"
    return json.loads(path.read_text(encoding="utf-8"))


def test_memory_matches_fully_documented_runs(held: Mapping[str, Any]) -> None:
    assert median(field.errors(held, "memory", whole=True)) <= math.log(1.02)


def test_nine_of_ten_verdicts_are_right(held: Mapping[str, Any]) -> None:
    judged = [field.case(row) for row in held["rows"] if row["kind"] == "fits"]
    assert sum(each.agrees for each in judged) >= 0.9 * len(judged)


def test_most_steps_are_within_a_factor_of_1_3(held: Mapping[str, Any]) -> None:
    assert median(field.errors(held, "time")) <= math.log(1.3)


def test_seven_of_nine_orderings_hold(held: Mapping[str, Any]) -> None:
    assert sum(field.ordering(row).agrees for row in held["orderings"]) >= 7


def test_every_published_step_has_a_range(held: Mapping[str, Any]) -> None:
    for row in held["rows"]:
        if row["kind"] == "time":
            step = field.option_of(row, field.facts_of(row)).step
            assert step is not None
            assert step.low_seconds <= step.seconds <= step.high_seconds, row["id"]
            parts = (
                step.compute_seconds,
                step.communication_seconds,
                step.offload_seconds,
                step.bubble_seconds,
            )
            assert sum(parts) == pytest.approx(step.seconds)


def test_page_shows_current_results_and_explains_errors(held: Mapping[str, Any]) -> None:
    """`python -m replays.field_measurements ORACLE PAGE` writes the table anew."""
    page = PAGE.read_text(encoding="utf-8")
    reasons = field.reasons_of(page)
    assert field.table(held, reasons) in page
    for row in held["rows"]:
        got, expected = field.predicted(row), field.published(row)
        wrong = got != expected if row["kind"] == "fits" else abs(got / expected - 1)
        if wrong > field.EXPLAIN_ABOVE:
            assert reasons[field.name_of(row)], f"{row['id']}: say why in the last column"
    for row in held["orderings"]:
        assert field.ordering(row).agrees or reasons[row["id"]]
