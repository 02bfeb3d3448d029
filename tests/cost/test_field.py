"""Published figures of real runs match the estimates in docs/internals/memory-validation.md."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from dsconfig.cost import hardware
from dsconfig.facts import gather as facts_of
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


def test_short_steps_at_stage_3_are_bound_by_the_host(oracle: Mapping[str, Any]) -> None:
    """A small model takes as long with 512 as with 1,024 tokens, and up to what was published."""
    rows = [row for row in oracle["rows"] if row["id"].startswith("belle") and "-step" in row["id"]]
    steps = {row["id"]: field.option_of(row, field.facts_of(row)).step for row in rows}
    at_stage_3 = [row for row in rows if "-s3-" in row["id"]]
    assert len(at_stage_3) == 3
    for row in at_stage_3:
        step = steps[row["id"]]
        assert step is not None and step.low_seconds < row["seconds"] < step.high_seconds
        assert step.seconds > 0.8 * row["seconds"]
    short, longer = (steps[f"belle-560m-s3-{length}-step"] for length in (512, 1024))
    assert short is not None and longer is not None
    assert short.seconds == pytest.approx(longer.seconds, rel=0.01)


def test_a_bridge_connects_two_cards_only() -> None:
    def links(device: str, gpus: int) -> list[float]:
        facts = facts_of(device=device, gpus=gpus)
        return [hardware.rates(facts, end).node_link for end in ("slow", "usual", "fast")]

    pair, four = links("rtx-3090", 2), links("rtx-3090", 4)
    assert pair[0] == four[0] and pair[2] > four[2]
    assert four == links("rtx-4090", 4)
    assert links("a100-80gb", 2) == links("a100-80gb", 4)


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
