"""An engine holds parts, and its process is as before once it is destroyed."""

import ast
from importlib import import_module
from logging import ERROR
from pathlib import Path

import pytest

from dsengine import Engine
from training.ranks import Ranks

LOOP = Path(__file__).parents[2] / "engine" / "dsengine" / "loop"


def test_engine_has_no_base_class_besides_the_module() -> None:
    own = [kind.__name__ for kind in Engine.__mro__ if kind.__module__.startswith("dsengine")]
    assert own == ["Engine", "MoveAwareModule"]


def test_no_part_imports_the_engine() -> None:
    importing = {
        path.name
        for path in LOOP.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "dsengine.loop.engine"
    }
    assert importing == {"initialization.py"}


JOB = "training.process_jobs:engines_in_a_row"


@pytest.mark.engine
@pytest.mark.parametrize("stage", [0, 3])
def test_process_is_as_before_when_engines_are_destroyed(ranks: Ranks, stage: int) -> None:
    for found in ranks.run(JOB, kind="rules", stage=stage, divides="tensor"):
        assert not found["before"]["split losses"]
        assert found["after"] == [found["before"]] * 3
        assert [each["sizes"] for each in found["inside"]] == [[1, 2, 1]] * 3
        assert not any(each["collects garbage"] for each in found["inside"])
        assert [each["log levels"] for each in found["inside"]] == [[ERROR, ERROR]] * 3


@pytest.mark.engine
@pytest.mark.live
def test_losses_of_destroyed_engines_are_those_of_torch(ranks: Ranks) -> None:
    for found in ranks.run(JOB, kind="causal", stage=1, divides="tensor"):
        assert not found["before"]["split losses"]
        assert found["after"] == [found["before"]] * 3
        assert [each["split losses"] for each in found["inside"]] == [True] * 3


@pytest.mark.engine
@pytest.mark.live
def test_attention_of_destroyed_engines_is_that_of_transformers(ranks: Ranks) -> None:
    for found in ranks.run(JOB, kind="causal", stage=2, divides="sequence"):
        assert found["after"] == [found["before"]] * 3
        assert [each["sizes"] for each in found["inside"]] == [[1, 1, 2]] * 3
        assert all(each["attention"] != found["before"]["attention"] for each in found["inside"])


@pytest.mark.engine
def test_replaced_methods_attributes_and_models_are_honored(ranks: Ranks) -> None:
    for found in ranks.run("training.process_jobs:replaced"):
        assert found == {"steps": 1, "collates": [tuple, list, list], "is stale": False}


@pytest.mark.engine
def test_subclasses_wrapped_optimizers_and_attributes_of_the_model_work(ranks: Ranks) -> None:
    for found in ranks.run("training.process_jobs:extended"):
        assert found == {
            "name": "own",
            "batch": 100,
            "gradients": "of the model",
            "shows lr": True,
            "shows class": True,
        }


def test_star_import_has_submodules_and_no_alias_of_a_type() -> None:
    names: dict[str, object] = {}
    exec("from dsengine.ops import *; from dsengine.utils.zero_to_fp32 import *", names)
    assert "adam" in names and "Path" not in names
    assert "*" not in dir(import_module("dsengine.runtime.config"))
