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
from dsengine.checkpoints.restricted_pickle import (
    DataUnpickler,
    Name,
    dtype_named,
    ignore_attributes,
    reason_of,
    set_attributes,
)
from dsengine.torch_private.pickles import is_torchscript, named_in_tensor_files


class Record:
    """An object of a class that is not imported: its constructor's arguments and its state."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.arguments = arguments
        self.__dict__.update(named)


def _fill_record(record: Record, state: Any) -> None:
    if isinstance(state, dict | tuple):
        set_attributes(record, state)
    else:
        vars(record)["state"] = state


def _default_dict(factory: Any = None, *items: Any) -> Any:
    """Create a defaultdict, whose factory is the class itself, not its ``Name``."""
    return collections.defaultdict(getattr(factory, "create", None), *items)


def _bytes(text: str, encoding: str) -> bytes:
    """Create bytes, which protocol 2 stores as a Latin-1 text."""
    if encoding != "latin1":
        raise CheckpointError(f"it encodes a text as {encoding}")
    return text.encode("latin1")


_PLAIN: dict[tuple[str, str], tuple[Any, ...]] = {
    ("_codecs", "encode"): (_bytes,),
    ("argparse", "Namespace"): (argparse.Namespace, set_attributes),
    ("builtins", "complex"): (complex,),
    ("builtins", "dict"): (dict,),
    ("builtins", "frozenset"): (frozenset,),
    ("builtins", "int"): (int,),
    ("builtins", "list"): (list,),
    ("builtins", "set"): (set,),
    ("builtins", "slice"): (slice,),
    ("collections", "OrderedDict"): (collections.OrderedDict, ignore_attributes),
    ("collections", "defaultdict"): (_default_dict, ignore_attributes),
    ("pathlib", "PosixPath"): (pathlib.PurePosixPath,),
}
"""What creates an object of each class, and what sets its attributes, if it may have any."""
_ALLOWED = {
    (module, name): Name(f"{module}.{name}", *functions)
    for (module, name), functions in {
        **_PLAIN,
        **{key: (create,) for key, create in named_in_tensor_files().items()},
    }.items()
}


class _Unpickler(DataUnpickler):
    def named(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "deepspeed":
            return Name(f"{module}.{name}", Record, _fill_record)
        return _ALLOWED.get((module, name)) or dtype_named(module, name)


_READING = SimpleNamespace(Unpickler=_Unpickler, load=None, loads=None, __name__="restricted")


def read_file(path: Path) -> Any:
    """Read a ``.pt`` or ``.bin`` file; tensors are memory-mapped.

    Raises CheckpointError for a file that is damaged, foreign, or refers to other code.
    """
    try:
        if is_torchscript(path):
            raise CheckpointError("it is a TorchScript archive, which contains code")
        return torch.load(
            path, map_location="cpu", weights_only=False, mmap=True, pickle_module=_READING
        )
    except CheckpointError as error:
        raise CheckpointError(f"{path} is refused: {error}") from None
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except Exception as error:  # damaged data can raise anything
        raise CheckpointError(f"{path} cannot be read: {reason_of(error)}") from None


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
