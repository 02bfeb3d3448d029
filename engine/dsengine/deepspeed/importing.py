"""``import dsengine.ops.adam``: DeepSpeed's module paths below ``dsengine``, and those refused.

A path that has a module in this room leads to that module, one object whatever it is called.
A path of DeepSpeed without a counterpart says what to do instead.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from dsengine.deepspeed.refusals import refusal

PACKAGE = "dsengine"
ROOM = f"{PACKAGE}.deepspeed"
_FOLDER = Path(__file__).parent
_OWN = ("importing", "refusals")
"""Files of this room that are no modules of DeepSpeed."""


def module_of(name: str) -> str | None:
    """Return the module that stands for ``deepspeed.<name>``, None where there is none."""
    place = _FOLDER.joinpath(*name.split("."))
    if name in _OWN or not (place.with_suffix(".py").exists() or place.is_dir()):
        return None
    return f"{ROOM}.{name}"


class _Standing(Loader):
    """Puts the module of this room where one of the other name was asked for."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__.removeprefix(f"{PACKAGE}.")
        sys.modules[module.__name__] = import_module(f"{ROOM}.{name}")


class _Names(MetaPathFinder):
    """Asked before the file system, which would load a file of this room a second time."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != PACKAGE or fullname.startswith(ROOM):
            return None
        if module_of(name) is not None:
            return ModuleSpec(fullname, _Standing())
        return None


class _Refusals(MetaPathFinder):
    """Asked last, when no module of that name was found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package == PACKAGE and (message := refusal(name)) is not None:
            # Not ModuleNotFoundError: ``from package import name`` would swallow it.
            raise ImportError(message, name=fullname)
        return None


def install() -> None:
    """From now on, let DeepSpeed's paths below ``dsengine`` be imported, or refused in words."""
    sys.meta_path.insert(0, _Names())
    sys.meta_path.append(_Refusals())
