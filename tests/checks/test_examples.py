"""Each rule reports its bad example and not its good one."""

import pytest

from dsconfig.checks.registry import rules
from dsconfig.reference.examples import check_example
from dsconfig.report import Severity

RULES = list(rules().values())
IDS = [f"{rule.code}-{rule.name}" for rule in RULES]


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_bad_example_is_reported(rule):
    found = [each for each in check_example(rule.bad) if each.code == rule.code]
    assert found, f"{rule.code} finds nothing in its bad example"
    for each in found:
        assert each.range is not None or rule.name == "unreadable-input"
        assert each.runtimes or rule.name.endswith(("-ignore", "-input"))


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_good_example_is_not_reported(rule):
    found = check_example(rule.good)
    assert not [each for each in found if each.code == rule.code]
    refusing = [each for each in found if each.severity is Severity.ERROR]
    assert not refusing, [f"{each.code} {each.message}" for each in refusing]
