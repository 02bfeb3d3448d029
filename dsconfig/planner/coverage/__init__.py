"""What becomes of every key the user set: honoured, inert or refused, and by what."""

from dsconfig.planner.coverage.cover import coverage, rule_of
from dsconfig.planner.coverage.rules import Case, Rule

__all__ = ["Case", "Rule", "coverage", "rule_of"]
