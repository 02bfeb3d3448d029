"""``import dsengine.ops.adam``: DeepSpeed's module paths below ``dsengine``, and those refused.

A path that has a module in this room leads to that module, one object whatever it is called.
A path of DeepSpeed without a counterpart says what to do instead.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from dsengine.deepspeed.refusals import missing, refusal

PACKAGE = "dsengine"
ROOM = f"{PACKAGE}.deepspeed"
_OWN = ("importing", "refusals", "standing_in")
"""Files of this room that are no modules of DeepSpeed."""
_ELSEWHERE = {
    "checkpointing": f"{PACKAGE}.loop.activation_checkpointing",
    "schedules": f"{PACKAGE}.optimizers.schedules",
}
"""Modules that scripts reach by these names and the engine itself is built on."""


def module_of(name: str) -> str | None:
    """Return the module that stands for ``deepspeed.<name>``, None where there is none."""
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    if not name or name in _OWN or spec_of(f"{ROOM}.{name}") is None:
        return None
    return f"{ROOM}.{name}"


def spec_of(full: str) -> ModuleSpec | None:
    """Return where module ``full`` comes from, None where there is none."""
    try:
        return find_spec(full)
    except ModuleNotFoundError:  # its package is not there either
        return None


class Standing(Loader):
    """Puts the module ``real`` where one of another name was asked for."""

    def __init__(self, real: ModuleSpec) -> None:
        self.real = real

    @classmethod
    def spec(cls, name: str, real: ModuleSpec) -> ModuleSpec:
        """Return what leads from ``name`` to the module ``real``."""
        spec = ModuleSpec(name, cls(real), origin=real.origin)
        spec.submodule_search_locations = real.submodule_search_locations
        return spec

    def exec_module(self, module: ModuleType) -> None:
        real = import_module(self.real.name)
        sys.modules[module.__name__] = real
        for name, value in vars(real).items():
            hidden = sys.modules.get(f"{real.__name__}.{name}")
            if hidden is not None and hidden is not value:
                # A function has the name of its module (``utils.z3_leaf_module``), which an
                # import of that module by this name would put in its place.
                sys.modules.setdefault(f"{module.__name__}.{name}", hidden)

    def get_code(self, name: str) -> Any:
        """For ``python -m dsengine.utils.zero_to_fp32``."""
        del name
        loader: Any = self.real.loader
        return loader.get_code(self.real.name)


class _Speaking(SourceFileLoader):
    """Loads a module of this room, which says what to do instead of a name that it has not."""

    def exec_module(self, module: ModuleType) -> None:
        below = module.__name__.removeprefix(f"{ROOM}.")
        vars(module)["__getattr__"] = missing(module.__name__, below)
        super().exec_module(module)


class _Names(MetaPathFinder):
    """Asked before the file system, which would load a file of this room a second time."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != PACKAGE:
            return None
        if fullname.startswith(ROOM):
            spec = PathFinder.find_spec(fullname, path, target)
            if spec is not None and type(spec.loader) is SourceFileLoader:
                spec.loader = _Speaking(spec.loader.name, spec.loader.path)
            return spec
        real = None if (place := module_of(name)) is None else spec_of(place)
        if real is None:
            return None
        return Standing.spec(fullname, real)


class _Refusals(MetaPathFinder):
    """Asked last, when no module of that name was found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        name = name.removeprefix("deepspeed.")  # under what a module here calls itself
        if package == PACKAGE and (message := refusal(name)) is not None:
            # Not ModuleNotFoundError: ``from package import name`` would swallow it.
            raise ImportError(message, name=fullname)
        return None


def install() -> None:
    """From now on, let DeepSpeed's paths below ``dsengine`` be imported, or refused in words."""
    earlier = [each for each in sys.meta_path if type(each).__module__ == __name__]
    for each in earlier:  # this module was imported before, and forgotten
        sys.meta_path.remove(each)
    sys.meta_path.insert(0, _Names())
    sys.meta_path.append(_Refusals())
