"""A rule in words: its doc, its effect, and its two examples."""

from inspect import cleandoc
from textwrap import indent
from typing import Any

from dsconfig.checks.rule import Rule
from dsconfig.report.diagnostic import RULE_PAGES, severity_of


def rule_as_text(rule: Rule) -> str:
    """The explanation of a rule, for a terminal."""
    when = (
        "after the file is read, while the engine is built or steps"
        if rule.late
        else ("while the file is read")
    )
    return "\n".join(
        [
            f"{rule.code} {rule.name}",
            f"  {severity_of(rule.effect)}, {rule.effect}; it shows {when}",
            "",
            cleandoc(rule.doc),
            "",
            "Wrong:",
            indent(rule.bad.config, "    "),
            "Right:",
            indent(rule.good.config, "    "),
            "",
            f"{RULE_PAGES}/{rule.code}.md",
        ]
    )


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
        "url": f"{RULE_PAGES}/{rule.code}.md",
    }
