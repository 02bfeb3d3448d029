"""Formulas of components are written out: no abbreviations, and a unit with every number."""

import re
from importlib import import_module

import pytest

from dsconfig.cost import loss
from dsconfig.cost.formulas import CHECKPOINTS, RECOMPUTED, of_blocks
from dsconfig.cost.timeline import Category
from dsconfig.facts import gather

MODULES = ("categories", "deepspeed.categories", "dsengine.categories", "timeline")
ABBREVIATED = re.compile(r"\b(w|s b v|sbh|2sbh|as/h|vh)\b|\d per ")


def formulas() -> list[str]:
    modules = [import_module(f"dsconfig.cost.{name}") for name in MODULES]
    values = [value for module in modules for value in vars(module).values()]
    categories = {value.formula for value in values if isinstance(value, Category)}
    return sorted(categories | set(loss.FORMULAS.values()))


@pytest.mark.parametrize("formula", formulas())
def test_formula_of_a_category_is_written_out(formula: str) -> None:
    assert not ABBREVIATED.search(formula)


@pytest.mark.parametrize("quadratic", [0.0, 5.0])
@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b"])
def test_formula_of_activations_is_written_out(name: str, quadratic: float) -> None:
    model = gather(model=name).model
    assert model is not None and model.architecture is not None
    for text in (
        of_blocks(model.architecture, 34.0, quadratic),
        RECOMPUTED,
        CHECKPOINTS,
    ):
        assert not ABBREVIATED.search(text) and text.startswith("sequence length x batch")
