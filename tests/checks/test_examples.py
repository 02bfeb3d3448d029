"""Each rule finds its bad example and leaves its good one alone."""

import pytest

from dsconfig.checks.examples import judge
from dsconfig.checks.registry import rules
from dsconfig.report import Severity

RULES = list(rules().values())
IDS = [f"{rule.code}-{rule.name}" for rule in RULES]


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_the_bad_example_is_found(rule):
    found = [each for each in judge(rule.bad) if each.code == rule.code]
    assert found, f"{rule.code} finds nothing in its bad example"
    for each in found:
        assert each.range is not None or rule.name == "unreadable-input"
        assert each.runtimes or rule.name.endswith("-ignore")


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_the_good_example_is_left_alone(rule):
    found = judge(rule.good)
    assert not [each for each in found if each.code == rule.code]
    refusing = [each for each in found if each.severity is Severity.ERROR]
    assert not refusing, [f"{each.code} {each.message}" for each in refusing]
