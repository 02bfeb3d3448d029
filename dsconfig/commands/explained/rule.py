"""A rule, or a finding of the resolver, in words: its page, or its facts."""

from typing import Any

from dsconfig.checks.finding_page import finding_page
from dsconfig.checks.page import page
from dsconfig.checks.rule import Rule
from dsconfig.report.diagnostic import RULE_PAGES
from dsconfig.resolver.codes import CODES


def rule_as_text(rule: Rule) -> str:
    """The rule's page, Markdown as it stands in ``docs/rules``."""
    return page(rule).rstrip("\n")


def rule_as_data(rule: Rule) -> dict[str, Any]:
    """The explanation of a rule, for programs."""
    return {
        "code": rule.code,
        "name": rule.name,
        "effect": rule.effect,
        "severity": rule.effect.severity,
        "late": rule.late,
        "doc": rule.doc,
        "bad": rule.bad.config,
        "good": rule.good.config,
        "url": f"{RULE_PAGES}/{rule.code}",
    }


def finding_as_text(code: str) -> str:
    """The page of a code that the resolver finds."""
    return finding_page(code).rstrip("\n")


def finding_as_data(code: str) -> dict[str, Any]:
    """The explanation of a code that the resolver finds, for programs."""
    found = CODES[code]
    config, flags = found.example or (None, None)
    return {
        "code": code,
        "name": found.name,
        "effect": found.effect,
        "severity": found.effect.severity,
        "doc": found.doc,
        "help": found.remedy,
        "example": config,
        "flags": flags,
        "url": f"{RULE_PAGES}/{code}",
    }
