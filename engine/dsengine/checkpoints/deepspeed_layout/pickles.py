"""DeepSpeed's pickled files: restricted unpickling, and pickling without its classes.

The files contain tensors, plain containers, and a few small objects of DeepSpeed's classes. Tensors
and containers are rebuilt by the functions listed here; the objects become ``Record``s with the
stored attributes. Any other name in a file is refused. Written files refer to DeepSpeed's classes
by name, so that DeepSpeed need not be installed.
"""

import argparse
import collections
import pathlib
import pickle
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from dsengine.checkpoints.errors import CheckpointError
from dsengine.torch_private import named_in_tensor_files


class Record:
    """An object of a class that is not imported: its constructor's arguments and its state."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.arguments = arguments
        self.__dict__.update(named)

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)
        else:
            self.state = state


_CONTAINERS = {
    ("argparse", "Namespace"): argparse.Namespace,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "complex"): complex,
    ("builtins", "slice"): slice,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "defaultdict"): collections.defaultdict,
    ("pathlib", "PosixPath"): pathlib.PurePosixPath,
    ("builtins", "dict"): dict,
    ("builtins", "list"): list,
    ("builtins", "int"): int,
    **named_in_tensor_files(),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _CONTAINERS:
            return _CONTAINERS[module, name]
        if module == "torch" and name.endswith("Storage") and hasattr(torch, name):
            return getattr(torch, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module.split(".")[0] == "deepspeed":
            return Record
        raise CheckpointError(f"it refers to {module}.{name}, which is not allowed in a checkpoint")


_READING = SimpleNamespace(Unpickler=_Unpickler, load=None, loads=None, __name__="restricted")


def read_file(path: Path) -> Any:
    """Read a ``.pt`` or ``.bin`` file; tensors are memory-mapped.

    Raises CheckpointError for a file that is damaged, foreign, or refers to other code.
    """
    try:
        return torch.load(
            path, map_location="cpu", weights_only=False, mmap=True, pickle_module=_READING
        )
    except CheckpointError as error:
        raise CheckpointError(f"{path} is refused: {error}") from None
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (RuntimeError, OSError, pickle.UnpicklingError, EOFError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{path} cannot be read: {reason}") from None


_InPython: Any = vars(pickle)["_Pickler"]
"""Python's pickler, in which writing of class names can be overridden; C's does not allow it."""


class _Foreign(type):
    """A class known only by name."""


@cache
def _class(module: str, name: str) -> type:
    return _Foreign(name, (), {"__module__": module})


def foreign(module: str, name: str, **attributes: Any) -> Any:
    """Return an object that is pickled as one of class ``module.name`` with these attributes."""
    instance = _class(module, name)()
    vars(instance).update(attributes)
    return instance


class _Pickler(_InPython):
    def save_global(self, obj: Any, name: str | None = None) -> None:
        if isinstance(obj, _Foreign):
            self.write(pickle.GLOBAL + f"{obj.__module__}\n{obj.__qualname__}\n".encode())
            self.memoize(obj)
        else:
            super().save_global(obj, name)


_WRITING = SimpleNamespace(Pickler=_Pickler, __name__="naming")


def write_file(content: Any, path: Path) -> None:
    """Write a file for ``torch.load``; ``foreign`` objects are pickled with their class names."""
    torch.save(content, path, pickle_module=_WRITING)
