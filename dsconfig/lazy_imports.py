"""The one way to put an import off: modules that are found now and run when they are first used.

    with lazy_imports():
        from dsconfig.cost import search

    search.fastest(...)           # runs dsconfig/cost/search.py, the first time

A type checker, the test of the layers and a reader see an ordinary import at the top of the file.
What is imported in the block must be a module; a name out of one (``from module import name``)
runs the module at once. Packages run at once, so their ``__init__`` stays light; one that has a
public face hands its names on with :func:`lazy_attributes`.

[Note: two threads] A module's own lock is held while it runs. Who touches it meanwhile waits for
the whole module; the thread that runs it sees it as far as it is, as in any import.
"""

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType
from typing import Any

_KNOWN = frozenset(
    f"__{name}__"
    for name in ("name", "spec", "loader", "package", "file", "cached", "path", "class")
)
"""What the machinery of imports asks of a module that nobody uses yet."""


class _Deferred(Loader):
    """Stands in for the loader of a module until the module is used."""

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
    """A module that runs when anything is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        if name not in _KNOWN:
            spec = ModuleType.__getattribute__(self, "__spec__")
            spec.loader_state.run(self, spec)
        return ModuleType.__getattribute__(self, name)


class _Finder(MetaPathFinder):
    """Finds modules of this package as any import would, and defers them."""

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
    """Defer the modules of this package that are imported inside."""
    if _FINDER in sys.meta_path:  # a package imported in the block has a block of its own
        yield
        return
    sys.meta_path.insert(0, _FINDER)
    try:
        yield
    finally:
        sys.meta_path.remove(_FINDER)


def lazy_attributes(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package: each name is taken, when it is first asked for, out of the
    module below the package that ``homes`` has it under."""
    module_of = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return find
