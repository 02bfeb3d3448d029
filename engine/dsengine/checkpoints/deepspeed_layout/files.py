"""DeepSpeed's files: names, without tensor parallelism, and contents, read without running code.

The files contain tensors, plain containers, and a few small objects of DeepSpeed's classes. Tensors
and containers are rebuilt by the functions listed here; the objects become ``Record``s with the
stored attributes. Any other name in a file is refused. Written files refer to DeepSpeed's classes
by name, so that DeepSpeed need not be installed.
"""

import argparse
import collections
import pathlib
import pickle
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from dsconfig.features.table import FEATURES
from dsengine.checkpoints.directory import read_latest
from dsengine.checkpoints.group import CheckpointError
from dsengine.checkpoints.restricted_pickle import (
    DataUnpickler,
    Name,
    dtype_named,
    ignore_attributes,
    reason_of,
    set_attributes,
)
from dsengine.torch_private.pickles import is_torchscript, named_in_tensor_files

MODEL_FILES, OPTIMIZER_FILES = "*_model_states.pt", "*_optim_states.pt"
_OPTIMIZER_FILE = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_MODEL_FILE = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")


def model_file(rank: int | None = None) -> str:
    """Return the name of a model file: of one ``rank`` at stage 3, otherwise of all ranks."""
    prefix = "" if rank is None else f"zero_pp_rank_{rank}_"
    return f"{prefix}mp_rank_00_model_states.pt"


def optimizer_file(rank: int, prefix: str) -> str:
    """Return the name of a rank's optimizer file; ``prefix``: "bf16_" with bf16."""
    return f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"


def is_deepspeed_directory(path: Path) -> bool:
    """Whether ``path`` is a tag directory written by DeepSpeed."""
    return path.is_dir() and any(_MODEL_FILE.fullmatch(child.name) for child in path.iterdir())


def tag_directory(path: Path, tag: str | None = None) -> Path:
    """Return the directory of ``tag`` or ``latest``, or ``path`` if it is a tag directory itself.

    Raises CheckpointError if there is none.
    """
    if tag is None and is_deepspeed_directory(path):
        return path
    tag = tag or read_latest(path)
    if tag is None:
        raise CheckpointError(f"{path} has no file named latest and is not a checkpoint itself")
    if not is_deepspeed_directory(path / tag):
        raise CheckpointError(f"{path / tag} is not a DeepSpeed checkpoint")
    return path / tag


def find_files(directory: Path) -> tuple[list[Path], list[Path]]:
    """Return model files (one, or one per rank at stage 3) and optimizer files (one per rank, or
    none), each in rank order.

    Raises CheckpointError for model-parallel checkpoints and for missing ranks.
    """
    names = sorted(child.name for child in directory.iterdir())
    models = [match for name in names if (match := _MODEL_FILE.fullmatch(name))]
    optimizers = [match for name in names if (match := _OPTIMIZER_FILE.fullmatch(name))]
    if any(int(match[2]) for match in [*models, *optimizers]):
        raise CheckpointError(f"{directory}: {FEATURES['model_parallel_checkpoints'].text}")
    return _in_order(directory, models), _in_order(directory, optimizers)


def _in_order(directory: Path, matches: list[re.Match[str]]) -> list[Path]:
    by_rank = {int(match[1] or 0): match[0] for match in matches}
    missing = sorted(set(range(len(by_rank))) - set(by_rank))
    if missing:
        raise CheckpointError(f"{directory} has no file of rank {missing[0]}")
    return [directory / by_rank[rank] for rank in range(len(by_rank))]


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
