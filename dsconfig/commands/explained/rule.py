"""A rule in words: its page, or its facts."""

from inspect import cleandoc
from typing import Any

from dsconfig.checks.page import page
from dsconfig.checks.rule import Rule
from dsconfig.report.diagnostic import RULE_PAGES, severity_of


def rule_as_text(rule: Rule) -> str:
    """The rule's page, Markdown as it stands in ``docs/rules``."""
    return page(rule).rstrip("\n")


def rule_as_data(rule: Rule) -> dict[str, Any]:
    """The explanation of a rule, for programs."""
    return {
        "code": rule.code,
        "name": rule.name,
        "effect": rule.effect,
        "severity": severity_of(rule.effect),
        "late": rule.late,
        "doc": cleandoc(rule.doc),
        "bad": rule.bad.config,
        "good": rule.good.config,
        "url": f"{RULE_PAGES}/{rule.code}",
    }
