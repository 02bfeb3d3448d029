"""How the engine handles each key of a config: used (``honoured``), inert or refused."""

from dsconfig.planner.coverage.cover import coverage, rule_of
from dsconfig.planner.coverage.rules import Case, Rule

__all__ = ["Case", "Rule", "coverage", "rule_of"]
