"""Published figures of real runs match the estimates in docs/internals/memory-validation.md."""

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


@pytest.fixture(name="oracle", scope="module")
def _oracle() -> Mapping[str, Any]:
    path = ROOT / "tests" / "oracle" / "field_measurements.json"
    return json.loads(path.read_text(encoding="utf-8"))


def test_memory_matches_fully_documented_runs(oracle: Mapping[str, Any]) -> None:
    assert median(field.errors(oracle, "memory", only_complete=True)) <= math.log(1.02)


def test_nine_of_ten_verdicts_are_right(oracle: Mapping[str, Any]) -> None:
    cases = [field.case(row) for row in oracle["rows"] if row["kind"] == "fits"]
    assert sum(case.agrees for case in cases) >= 0.9 * len(cases)


def test_most_steps_are_within_a_factor_of_1_3(oracle: Mapping[str, Any]) -> None:
    assert median(field.errors(oracle, "time")) <= math.log(1.3)


def test_seven_of_nine_orderings_hold(oracle: Mapping[str, Any]) -> None:
    assert sum(field.ordering(row).agrees for row in oracle["orderings"]) >= 7


def test_every_published_step_has_a_range(oracle: Mapping[str, Any]) -> None:
    for row in oracle["rows"]:
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


def test_page_shows_current_results_and_explains_errors(oracle: Mapping[str, Any]) -> None:
    """`python -m replays.field_measurements ORACLE PAGE` rewrites the table."""
    page = PAGE.read_text(encoding="utf-8")
    reasons = field.reasons_of(page)
    assert field.table(oracle, reasons) in page
    for row in oracle["rows"]:
        got, expected = field.predicted(row), field.published(row)
        wrong = got != expected if row["kind"] == "fits" else abs(got / expected - 1)
        if wrong > field.EXPLAIN_ABOVE:
            assert reasons[field.name_of(row)], f"{row['id']}: explain the error in the last column"
    for row in oracle["orderings"]:
        assert field.ordering(row).agrees or reasons[row["id"]]
