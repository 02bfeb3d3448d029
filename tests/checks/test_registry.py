"""Codes, names and triggers of rules."""

import re
from importlib import import_module

import pytest

from dsconfig.checks.registry import FAMILIES, MODULES, PAGE, rule, rule_of, rules
from dsconfig.report import Effect

RULES = rules()


def test_codes_have_a_family_and_names_are_unique():
    assert len({each.name for each in RULES.values()}) == len(RULES)
    for code, each in RULES.items():
        assert re.fullmatch(r"DSC\d{3}", code) and code[3] in FAMILIES
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", each.name), each.name
        assert each.doc.strip()


def test_duplicate_code_is_rejected():
    with pytest.raises(ValueError, match="DSC201 is taken by batch-missing"):
        rule("DSC201", Effect.NOTE)(lambda config: ())


def test_rule_lookup_by_code_and_name():
    assert rule_of("dsc201") is rule_of("batch-missing") is RULES["DSC201"]
    assert rule_of("DSC999") is None


@pytest.mark.parametrize("module", sorted(MODULES))
def test_triggers_of_rules_are_triggers_of_module(module):
    """Otherwise the module of a rule would not be imported."""
    triggers = set(MODULES[module].split())
    if not triggers or triggers == {PAGE}:
        return
    owner = import_module(f"dsconfig.checks.{module}").__name__
    for each in RULES.values():
        if each.check.__module__ == owner:
            assert each.triggers and each.triggers <= triggers, each.code


def test_every_rule_is_in_a_listed_module():
    listed = {f"dsconfig.checks.{name}" for name in MODULES}
    assert {each.check.__module__ for each in RULES.values()} <= listed
