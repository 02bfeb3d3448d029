"""Names that DeepSpeed's test files import and dsengine has not: what stands for them.

One such name at the top of a file would end all of its tests. While files are imported, anything
can be taken from ``deepspeed``; a test that then uses what is not there fails by its name.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import dsengine
from dsengine.deepspeed import importing
from dsengine.deepspeed.refusals import missing, refusal


class MissingNameError(Exception):
    """A test has used a name of DeepSpeed's that dsengine has not."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(refusal(name) or f"deepspeed.{name} is not there")


is_importing = False


class _Placeholder(type):
    """The type of what is missing: free to handle while files are imported, an error after."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(f"{cls._insist()}.{name}")

    def __call__(cls, *_: Any, **__: Any) -> Any:
        return _placeholder(cls._insist())

    def __instancecheck__(cls, instance: Any) -> bool:
        cls._insist()
        return False

    def __getitem__(cls, key: Any) -> Any:
        return _placeholder(cls._insist())

    def __iter__(cls) -> Any:
        cls._insist()
        return iter(())

    def _insist(cls) -> str:
        name: str = cls.__dict__.get("_missing") or cls.__mro__[1].__dict__["_missing"]
        if not is_importing:
            raise MissingNameError(name)
        return name


def _placeholder(name: str) -> Any:
    return _Placeholder(name.rpartition(".")[2], (), {"_missing": name})


class _Missing(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []
        below = module.__name__.partition(".")[2]
        vars(module)["__getattr__"] = _offering(module.__name__, below)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != "deepspeed" or not name or not is_importing:
            return None
        if _is_module(f"dsengine.{name}"):
            return None
        return ModuleSpec(fullname, _Missing(), is_package=True)


def _offering(module: str, below: str) -> Any:
    """The ``__getattr__`` of a module, which has every name while files are imported."""
    asked = missing(module, below)

    def __getattr__(name: str) -> Any:
        if name == "__path__" and is_importing:
            return [str(Path(__file__).parent)]  # some list what is there: nothing of DeepSpeed's
        if name.startswith("__") or not (is_importing or module.startswith("deepspeed.")):
            return asked(name)
        if module.startswith("dsengine") and _is_module(f"{module}.{name}"):
            return asked(name)  # which has not been imported yet
        return _placeholder(f"{below}.{name}" if below else name)

    return __getattr__


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, AttributeError):
        return False


def install() -> None:
    """Before any other name of DeepSpeed's is imported."""
    importing.missing = _offering  # type: ignore[assignment]
    dsengine.missing = _offering  # type: ignore[assignment]
    sys.meta_path.insert(0, _Finder())
