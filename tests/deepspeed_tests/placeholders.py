"""Placeholders for names that DeepSpeed's test files import but dsengine does not have.

Otherwise one missing import would fail all tests of a file. While files are imported, any name can
be imported from ``deepspeed``; a test that uses a placeholder fails with its name.
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
from dsconfig.features.deepspeed_names import refusal
from dsengine.deepspeed import names
from dsengine.deepspeed.names import missing


class MissingNameError(Exception):
    """A test has used a name of DeepSpeed that dsengine does not have."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(refusal(name) or f"deepspeed.{name} does not exist")


is_importing = False


class _Placeholder(type):
    """Metaclass of placeholders: usable while files are imported, raises later."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(f"{cls._require_importing()}.{name}")

    def __call__(cls, *_: Any, **__: Any) -> Any:
        return _placeholder(cls._require_importing())

    def __instancecheck__(cls, instance: Any) -> bool:
        cls._require_importing()
        return False

    def __getitem__(cls, key: Any) -> Any:
        return _placeholder(cls._require_importing())

    def __iter__(cls) -> Any:
        cls._require_importing()
        return iter(())

    def _require_importing(cls) -> str:
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
        vars(module)["__getattr__"] = _placeholder_getattr(module.__name__, below)


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


def _placeholder_getattr(module: str, below: str) -> Any:
    """Return a module's ``__getattr__`` that has every name while files are imported."""
    fallback = missing(module, below)

    def __getattr__(name: str) -> Any:
        if name == "__path__" and is_importing:
            return [str(Path(__file__).parent)]  # some files list its contents
        if name.startswith("__") or not (is_importing or module.startswith("deepspeed.")):
            return fallback(name)
        if module.startswith("dsengine") and _is_module(f"{module}.{name}"):
            return fallback(name)  # not imported yet
        return _placeholder(f"{below}.{name}" if below else name)

    return __getattr__


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, AttributeError):
        return False


def install() -> None:
    """Install the placeholders; call before other names of DeepSpeed are imported."""
    names.missing = _placeholder_getattr
    dsengine.missing = _placeholder_getattr
    sys.meta_path.insert(0, _Finder())
