"""The small states of a checkpoint: written with torch.save, read without running code."""

import argparse
import collections
import datetime
import io
import pathlib
import pickle
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any, cast

import torch

from dsengine.checkpoints.errors import CheckpointError

_HARMLESS = [
    argparse.Namespace,
    collections.OrderedDict,
    collections.defaultdict,
    datetime.datetime,
    datetime.timedelta,
    pathlib.PosixPath,
    pathlib.PurePosixPath,
    set,
    torch.Size,
]
"""Classes whose unpickling only builds a value; scripts put them into ``client_state``."""

_COLLECTIONS: tuple[Any, ...] = (list, tuple, set, frozenset)
_SCALARS: tuple[Any, ...] = (bool, int, float, str, bytes)


def dump(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def parse(data: bytes, source: str) -> Any:
    """Read what ``dump`` wrote; refuse anything whose reading would run code."""
    try:
        with torch.serialization.safe_globals(_HARMLESS):
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{source} cannot be read: {reason}") from None


def load(path: Path) -> Any:
    return parse(path.read_bytes(), str(path))


def as_plain(client_state: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return what is read back without running code, and the keys whose objects became data.

    Objects that are plain data in a class of their own (a dict or number of another type, an enum,
    a dataclass) are taken as that data. Raises ValueError for a value that is more.
    """
    plain, changed = dict(client_state), []
    for key, value in client_state.items():
        if _fault(key, value) is None:
            continue
        with suppress(RecursionError):  # what holds itself has no end
            plain[key] = _data_of(value)
        if (fault := _fault(key, plain[key])) is not None:
            raise ValueError(
                f"client_state[{key!r}] holds {type(value).__name__}, which cannot be read back "
                "without running code from the file; store plain data and tensors, or allow the "
                f"class with torch.serialization.add_safe_globals ({fault})"
            )
        changed.append(key)
    return plain, changed


def _fault(key: str, value: Any) -> Exception | None:
    """Why a value could not be written, or not read back safely."""
    try:
        parse(dump(value), key)
    except (CheckpointError, pickle.PicklingError, AttributeError, TypeError, RecursionError) as e:
        return e
    return None


def _data_of(value: Any) -> Any:
    """The plain data in an object, with all that it holds; itself where it is none."""
    match value:
        case Enum():
            return _data_of(value.value)
        case SimpleNamespace() | argparse.Namespace():
            return {name: _data_of(each) for name, each in vars(value).items()}
        case Mapping():
            return {_data_of(name): _data_of(each) for name, each in value.items()}
        case PurePath():
            return pathlib.PurePosixPath(value)
    for kind in _SCALARS:
        if isinstance(value, kind):
            return kind(value)
    for kind in _COLLECTIONS:
        if isinstance(value, kind):
            return kind(_data_of(each) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _data_of(getattr(value, each.name)) for each in fields(value)}
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return cast(Any, value).item()
    return value
