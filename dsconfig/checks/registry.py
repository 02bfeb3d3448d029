"""All rules, by code. Families are imported when the first config is judged."""

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib import import_module

from dsconfig.checks.rule import Check, Example, Holds, Rule, everywhere
from dsconfig.report import Effect

FAMILIES: Mapping[str, str] = {
    "0": "Syntax and keys",
    "1": "auto",
    "2": "Batch",
    "3": "Precision",
    "4": "ZeRO and offload",
    "5": "Memory",
    "6": "Optimizer and scheduler",
    "7": "transformers and accelerate",
    "8": "Versions",
    "9": "Checkpoint, data and monitors",
}
"""The first digit of a code, and what its rules are about."""

MODULES = (
    "keys",
    "values",
    "auto",
    "batch",
    "removed",
    "versions",
    "precision",
    "autocast",
    "loss_scale",
    "dtypes",
    "zero_stage",
    "zero",
    "offload",
    "optimizer",
    "adam",
    "muon",
    "scheduler",
    "learning_rate",
    "zenflow",
    "parallel",
    "experts",
    "compile",
    "memory",
    "checkpointing",
    "data",
    "monitors",
    "huggingface",
)

_RULES: dict[str, Rule] = {}


def rule(
    code: str,
    name: str,
    effect: Effect,
    *,
    bad: str | Example,
    good: str | Example,
    wakes: str = "",
    late: bool = False,
    holds: Holds = everywhere,
    on_templates: bool = False,
) -> Callable[[Check], Check]:
    """Register a check under a code that is never used again for anything else.

    ``effect``, ``late`` and ``holds`` are what its findings have unless they say otherwise.
    """

    def register(check: Check) -> Check:
        if code in _RULES:
            raise ValueError(f"{code} is taken by {_RULES[code].name}")
        _RULES[code] = Rule(
            code=code,
            name=name,
            effect=effect,
            check=check,
            wakes=frozenset(wakes.split()),
            late=late,
            holds=holds,
            on_templates=on_templates,
            bad=_example(bad),
            good=_example(good),
        )
        return check

    return register


def _example(given: str | Example) -> Example:
    return given if isinstance(given, Example) else Example(config=given)


@cache
def rules() -> Mapping[str, Rule]:
    """Every rule by code, in order of code."""
    for module in MODULES:
        import_module(f"dsconfig.checks.{module}")
    return dict(sorted(_RULES.items()))


def rule_of(code_or_name: str) -> Rule | None:
    """The rule with this code (any letter case) or kebab name."""
    for found in rules().values():
        if code_or_name.upper() == found.code or code_or_name.lower() == found.name:
            return found
    return None


@lru_cache(maxsize=1024)
def awake(keys: frozenset[str]) -> tuple[Rule, ...]:
    """The rules that have something to look at in a config with these top-level keys."""
    return tuple(
        found for found in rules().values() if not found.wakes or not found.wakes.isdisjoint(keys)
    )
