"""``import dsengine.ops.adam``: DeepSpeed's modules below ``dsengine``, or an explanation.

A path of the table is a module whose names are imported when they are first read, one object under
all its paths. For other paths of DeepSpeed the ImportError states the alternative. ``deepspeed``
itself is dsengine once ``replacement`` has set ``distributions``.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from dsconfig.features.deepspeed_names import refusal
from dsengine.deepspeed import names
from dsengine.deepspeed.table import (
    ANY,
    MODULES,
    NAMESPACE,
    PACKAGE,
    module_of,
    places,
    public_names,
)
from dsengine.startup import DEEPSPEED


class _AliasLoader(Loader):
    """Loads the module ``real`` under another name."""

    def __init__(self, real: ModuleSpec) -> None:
        self.real = real

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(self.real.name)

    def get_code(self, name: str) -> Any:
        """For ``python -m dsengine.utils.zero_to_fp32``."""
        del name
        loader: Any = self.real.loader
        return loader.get_code(self.real.name)


class _TableModule(ModuleType):
    """A module of the table."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, but keep a function that has the name of a submodule.

        An import of ``utils.z3_leaf_module`` would replace it.
        """
        below = self.__name__.removeprefix(f"{NAMESPACE}.")
        if not (isinstance(value, ModuleType) and name in places(below)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        named = places(self.__name__.removeprefix(f"{NAMESPACE}."))
        return [*super().__dir__(), *(name for name in named if name != ANY)]


class _TableLoader(Loader):
    """Loads the module ``deepspeed.<below>``."""

    def __init__(self, below: str) -> None:
        self._below = below

    @classmethod
    def spec(cls, name: str, below: str) -> ModuleSpec:
        """Return a spec that loads the module ``deepspeed.<below>`` as ``name``."""
        file = f"<deepspeed.{below}>"
        spec = ModuleSpec(name, cls(below), origin=file)
        if any(path.startswith(f"{below}.") for path in MODULES):
            spec.submodule_search_locations = [file]
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _TableModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        namespace = vars(module)
        namespace.setdefault("__path__", [])  # so that paths below it reach the finder
        namespace["__file__"] = f"<deepspeed.{self._below}>"
        namespace["__all__"] = public_names(self._below)
        namespace["__getattr__"] = _reader(module, self._below)

    def get_code(self, name: str) -> Any:
        """Return the code of the first module of dsengine in which names live."""
        del name
        target = find_spec(next(place.module for place in places(self._below).values()))
        loader: Any = None if target is None else target.loader
        return loader.get_code(loader.name)


def _reader(module: ModuleType, below: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module of the table."""
    elsewhere, other = names.missing(module.__name__, below), places(below).get(ANY)

    def __getattr__(name: str) -> Any:
        if (place := places(below).get(name)) is not None:
            value = getattr(import_module(place.module), place.attribute)
            return vars(module).setdefault(name, value)
        if other is not None and not name.startswith("_"):
            with suppress(AttributeError):
                return getattr(import_module(other.module), other.attribute)(name)
        return elsewhere(name)

    return __getattr__


class Finder(MetaPathFinder):
    """Finds DeepSpeed's modules, as ``dsengine.x`` and, if it ``replaces``, as ``deepspeed.x``."""

    distributions: Callable[[Any], Iterator[Any]] | None = None
    """Returns the metadata of ``deepspeed``; None if dsengine does not replace it."""

    @property
    def replaces(self) -> bool:
        """Whether ``deepspeed`` is dsengine."""
        return self.distributions is not None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package == DEEPSPEED and self.replaces:
            real = spec_of(f"{PACKAGE}.{name}" if name else PACKAGE)
            return _alias(fullname, real) if real is not None else _explain(fullname, name)
        if package != PACKAGE or not name:
            return None
        below = name.removeprefix("deepspeed.")
        implemented = module_of(below)
        if implemented == fullname:
            return _TableLoader.spec(fullname, below)
        if implemented is not None and (real := spec_of(implemented)) is not None:
            return _alias(fullname, real)
        if PathFinder.find_spec(fullname, path, target) is None:
            _explain(fullname, below)
        return None

    def find_distributions(self, context: Any = None) -> Iterator[Any]:
        """Return the metadata of ``deepspeed``, which names dsengine, if it ``replaces``."""
        return iter(()) if self.distributions is None else self.distributions(context)


def _alias(name: str, real: ModuleSpec) -> ModuleSpec:
    """Return a spec that loads the module ``real`` as ``name``."""
    spec = ModuleSpec(name, _AliasLoader(real), origin=real.origin)
    spec.submodule_search_locations = real.submodule_search_locations
    return spec


def _explain(fullname: str, below: str) -> None:
    """Raise an ImportError for a module that does not exist, unless there is no dsengine yet."""
    if sys.modules.get(fullname.partition(".")[0]) is not sys.modules.get(PACKAGE):
        return
    if refusal(below) is not None:
        # Not ModuleNotFoundError, which ``from package import name`` would suppress.
        raise ImportError(names.explanation(below), name=fullname)
    # Suppressed likewise, unless it has another name.
    raise ModuleNotFoundError(names.explanation(below), name=f"deepspeed.{below}")


def spec_of(full: str) -> ModuleSpec | None:
    """Return the spec of module ``full``, or None if it does not exist."""
    try:
        return find_spec(full)
    except ModuleNotFoundError:  # neither does its package
        return None


FINDER = Finder()


def install() -> None:
    """Make DeepSpeed's paths below ``dsengine`` importable, or explain why they are not."""
    previous = [finder for finder in sys.meta_path if type(finder).__module__ == __name__]
    for finder in previous:  # this module is imported a second time
        sys.meta_path.remove(finder)
        FINDER.distributions = vars(finder).get("distributions")
    sys.meta_path.insert(0, FINDER)
