"""``import dsengine.ops.adam``: DeepSpeed's module paths below ``dsengine``, or an explanation.

A path with a module in this package imports that module, as one object under all its names. For
other paths of DeepSpeed the ImportError states the alternative.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

from dsengine.deepspeed.names import explain_in, explanation
from dsengine.deepspeed.paths import NAMESPACE, PACKAGE, module_of, spec_of
from dsengine.deepspeed.refusals import refusal


class AliasLoader(Loader):
    """Loads the module ``real`` under another name."""

    def __init__(self, real: ModuleSpec) -> None:
        self.real = real

    @classmethod
    def spec(cls, name: str, real: ModuleSpec) -> ModuleSpec:
        """Return a spec that loads the module ``real`` as ``name``."""
        spec = ModuleSpec(name, cls(real), origin=real.origin)
        spec.submodule_search_locations = real.submodule_search_locations
        return spec

    def exec_module(self, module: ModuleType) -> None:
        real = import_module(self.real.name)
        sys.modules[module.__name__] = real
        for name, value in vars(real).items():
            hidden = sys.modules.get(f"{real.__name__}.{name}")
            if hidden is not None and hidden is not value:
                # A function has the name of its module (``utils.z3_leaf_module``) and would be
                # replaced by an import of that module.
                sys.modules.setdefault(f"{module.__name__}.{name}", hidden)

    def get_code(self, name: str) -> Any:
        """For ``python -m dsengine.utils.zero_to_fp32``."""
        del name
        loader: Any = self.real.loader
        return loader.get_code(self.real.name)


class _ExplainingLoader(SourceFileLoader):
    """Loads a module of this package so that it finds or explains names it does not define."""

    def exec_module(self, module: ModuleType) -> None:
        explain_in(module, module.__name__.removeprefix(f"{NAMESPACE}."))
        super().exec_module(module)


class _NameFinder(MetaPathFinder):
    """Runs before the file system's finder, which would load a file a second time."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != PACKAGE:
            return None
        if fullname.startswith(NAMESPACE):
            spec = PathFinder.find_spec(fullname, path, target)
            if spec is not None and type(spec.loader) is SourceFileLoader:
                spec.loader = _ExplainingLoader(spec.loader.name, spec.loader.path)
            return spec
        real = None if (target_name := module_of(name)) is None else spec_of(target_name)
        if real is None:
            return None
        return AliasLoader.spec(fullname, real)


class _LastFinder(MetaPathFinder):
    """Runs last, when no module of that name was found, and explains why."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if sys.modules.get(package) is not sys.modules.get(PACKAGE):
            return None
        name = name.removeprefix("deepspeed.")  # the real name of a module here
        if refusal(name) is not None:
            # Not ModuleNotFoundError, which ``from package import name`` would suppress.
            raise ImportError(explanation(name), name=fullname)
        # Suppressed likewise, unless it has another name.
        raise ModuleNotFoundError(explanation(name), name=f"deepspeed.{name}")


def install() -> None:
    """Make DeepSpeed's paths below ``dsengine`` importable, or explain why they are not."""
    previous = [finder for finder in sys.meta_path if type(finder).__module__ == __name__]
    for finder in previous:  # this module is imported a second time
        sys.meta_path.remove(finder)
    sys.meta_path.insert(0, _NameFinder())
    sys.meta_path.append(_LastFinder())
