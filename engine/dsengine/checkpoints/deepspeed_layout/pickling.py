"""Writing files in which objects are of DeepSpeed's classes, where those are not installed."""

import pickle
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

_InPython: Any = vars(pickle)["_Pickler"]
"""Python's own pickler, which can be told how to write the name of a class; C's cannot."""


class _Foreign(type):
    """A class by its name alone."""


@cache
def _class(module: str, name: str) -> type:
    return _Foreign(name, (), {"__module__": module})


def foreign(module: str, name: str, **attributes: Any) -> Any:
    """Return an object that a file holds as one of class ``module.name`` with these attributes."""
    made = _class(module, name)()
    vars(made).update(attributes)
    return made


class _Pickler(_InPython):
    def save_global(self, obj: Any, name: str | None = None) -> None:
        if isinstance(obj, _Foreign):
            self.write(pickle.GLOBAL + f"{obj.__module__}\n{obj.__qualname__}\n".encode())
            self.memoize(obj)
        else:
            super().save_global(obj, name)


_PICKLE = SimpleNamespace(Pickler=_Pickler, __name__="naming")


def write_file(content: Any, path: Path) -> None:
    """Write what ``torch.load`` reads; ``foreign`` objects in it are those of their classes."""
    torch.save(content, path, pickle_module=_PICKLE)
