"""Deferred imports: modules are located now and executed on first use.

    with lazy_imports():
        from dsconfig.cost import search

    search.fastest(...)           # runs dsconfig/cost/search.py, the first time

A type checker and the layer test see an ordinary import at the top of the file. Only modules can
be imported in the block; ``from module import name`` executes the module at once. Packages are
executed at once as well, so their ``__init__`` stays light; a package with a public surface exports
its names with :func:`lazy_attributes`.

[Note: two threads] A module's lock is held while it executes. Other threads that use it wait until
it is complete; the executing thread sees it partially initialized, as in any import.
"""

import re
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType
from typing import Any, cast

_KNOWN = frozenset(
    f"__{name}__"
    for name in ("name", "spec", "loader", "package", "file", "cached", "path", "class")
)
"""Attributes that the import machinery reads from a module before its first use."""


class _Deferred(Loader):
    """Loader that replaces a module's own loader until first use."""

    def __init__(self, real: Loader) -> None:
        self._real = real
        self._lock = RLock()
        self._running = False

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Unused(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass

    def run(self, module: ModuleType, spec: ModuleSpec) -> None:
        with self._lock:
            if self._running or type(module) is ModuleType:
                return
            self._running = True
            try:
                spec.loader = module.__loader__ = self._real
                self._real.exec_module(module)
                module.__class__ = ModuleType
            finally:
                self._running = False


class _Unused(ModuleType):
    """A module that executes on first attribute access."""

    def __getattribute__(self, name: str) -> Any:
        if name not in _KNOWN:
            spec = ModuleType.__getattribute__(self, "__spec__")
            spec.loader_state.run(self, spec)
        return ModuleType.__getattribute__(self, name)


class _Finder(MetaPathFinder):
    """Find modules of this package as usual, but defer their execution."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("dsconfig."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None or spec.submodule_search_locations is not None:
            return spec
        spec.loader = spec.loader_state = _Deferred(spec.loader)
        return spec


_FINDER = _Finder()


@contextmanager
def lazy_imports() -> Generator[None]:
    """Defer execution of this package's modules imported inside the block."""
    if _FINDER in sys.meta_path:  # already inside a block
        yield
        return
    sys.meta_path.insert(0, _FINDER)
    try:
        yield
    finally:
        sys.meta_path.remove(_FINDER)


def lazy_attributes(package: str, *extra: str) -> tuple[Callable[[str], Any], list[str]]:
    """Return the ``__getattr__`` and the ``__all__`` of a package.

    The names are those that the package imports under ``if TYPE_CHECKING``, which type checkers and
    editors read as well; each is imported on first access. ``extra`` are names defined in the
    package itself.
    """
    modules = _imported_names(package)

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = modules[name]
        value = (
            import_module(f"{package}.{name}")
            if module == package
            else getattr(import_module(module), name)
        )
        setattr(sys.modules[package], name, value)
        return value

    return find, sorted((*modules, *extra))


def _imported_names(package: str) -> dict[str, str]:
    """Return the module of each name that a package imports for type checkers."""
    spec = sys.modules[package].__spec__
    source: str = cast("Any", spec).loader.get_source(package)
    names: dict[str, str] = {}
    module = ""
    for line in source.partition("if TYPE_CHECKING:\n")[2].splitlines():
        if line and not line.startswith(" "):
            break
        start = _FROM_IMPORT.match(line)
        module = start[1] if start else module
        names |= dict.fromkeys(_REEXPORT.findall(line), module)
    return names


_FROM_IMPORT = re.compile(r" +from ([\w.]+) import\b")
_REEXPORT = re.compile(r"\b\w+ as (\w+)")
