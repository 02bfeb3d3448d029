"""Every public name of DeepSpeed is provided or refused with what to use instead."""

from collections import defaultdict
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import pytest

from dsconfig.features.deepspeed_names import NAMES
from dsengine.deepspeed.names import REEXPORTS
from tests import deepspeed_names, deepspeed_surface

SURFACE = deepspeed_surface.recorded()
PACKAGES: dict[str, list[str]] = defaultdict(list)
for _module in SURFACE.modules:
    PACKAGES[_module.partition(".")[0]].append(_module)


def imported(module: str) -> ModuleType | str:
    """Return the module of dsengine, or the message of its ImportError."""
    try:
        return import_module(f"dsengine.{module}" if module else "dsengine")
    except ImportError as error:
        return str(error)


def failure(module: ModuleType | str, name: str) -> str:
    """Return the error message for a name of a module, "" if it is provided."""
    if isinstance(module, str):
        return module
    try:
        getattr(module, name)
    except AttributeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("package", PACKAGES, ids=lambda name: name or "deepspeed")
def test_every_public_name_is_provided_or_explained(package: str) -> None:
    unexplained = []
    for module in PACKAGES[package]:
        found = imported(module)
        for name in SURFACE.modules[module]:
            message = failure(found, name)
            if message and not message.startswith("dsengine does not implement deepspeed."):
                unexplained.append((f"{module}.{name}", message))
    assert unexplained == []


REMOVED = {"runtime.fp16.onebit"}
"""Not in this release, but in older scripts."""


def test_each_refusal_applies_to_a_name() -> None:
    """DeepSpeed has it, or a program still uses it."""
    origins = {origin for names in SURFACE.modules.values() for origin in names.values()}
    used = {each.name for each in deepspeed_names.recorded()[1]}
    paths = {*SURFACE.names(), *origins, *used}
    for name in NAMES.keys() - REMOVED:
        assert any(path == name or path.startswith(f"{name}.") for path in paths), name


def test_names_that_modules_take_from_others_are_current() -> None:
    assert REEXPORTS.read_text("utf-8") == deepspeed_surface.reexports(SURFACE)


def test_name_taken_from_another_module_is_the_same_object() -> None:
    code = """
import dsengine
from dsengine.runtime.utils import get_accelerator
assert get_accelerator is dsengine.get_accelerator
assert dsengine.dist is dsengine.comm and dsengine.comm.comm is dsengine.comm
assert dsengine.ops.adam.cpu_adam.DeepSpeedCPUAdam is dsengine.ops.adam.DeepSpeedCPUAdam
"""
    exec(code, {})


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        ("from dsengine.runtime.engine import MoE", "runtime.engine.MoE: DeepSpeed's MoE layers"),
        ("import dsengine.zro", "has deepspeed.zro; did you mean deepspeed.zero?"),
        ("from dsengine import DeepSpeedEngin", "did you mean deepspeed.DeepSpeedEngine?"),
        ("import dsengine; dsengine.see_memory_usage", "deepspeed.runtime.utils.see_memory_usage?"),
        ("from dsengine.utils import nonsense", "neither dsengine nor DeepSpeed has deepspeed.uti"),
        ("from dsengine import _hidden", "has no deepspeed._hidden, which is private"),
        ("import dsengine.ops.adam.kernel", "use FusedAdam or DeepSpeedCPUAdam"),
    ],
)
def test_missing_name_names_the_nearest_one(attempt: str, words: str) -> None:
    with pytest.raises((ImportError, AttributeError)) as raised:
        exec(attempt, {})
    assert words in str(raised.value)


def test_special_names_raise_the_usual_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute '__wrapped__'"):
        _ = import_module("dsengine.utils").__wrapped__


def test_unknown_module_is_not_found() -> None:
    """Programs try imports, and continue with another after ModuleNotFoundError."""
    with pytest.raises(ModuleNotFoundError):
        import_module("dsengine.nonsense")


@pytest.mark.live
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
def test_recorded_names_are_those_of_the_installed_release() -> None:
    installed = deepspeed_surface.installed()
    assert (installed.release, installed) == (SURFACE.release, SURFACE)
