"""The small states of a checkpoint: of the client, the random generators and the saved run.

They are written with torch.save and read with safe unpickling.
"""

import argparse
import collections
import datetime
import io
import pathlib
import pickle
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any, cast

import numpy
import torch
from torch import Size

from dsengine.checkpoints.group import CheckpointError
from dsengine.checkpoints.manifest import Manifest
from dsengine.checkpoints.restricted_pickle import reason_of
from dsengine.release import DEEPSPEED

_SAFE_CLASSES = [
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
    """Read what ``dump`` wrote; raise CheckpointError if that would run code."""
    try:
        with torch.serialization.safe_globals(_SAFE_CLASSES):
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # damaged data can raise anything
        raise CheckpointError(f"{source} cannot be read: {reason_of(error)}") from None


def load(path: Path) -> Any:
    return parse(path.read_bytes(), str(path))


def to_plain(client_state: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a client state that can be read back safely, and the keys that were converted.

    Objects that are plain data in another class (a subclass of dict or int, an enum, a dataclass)
    are converted to that data. Raises ValueError for any other object.
    """
    plain, converted = dict(client_state), []
    for key, value in client_state.items():
        if _unsafe(key, value) is None:
            continue
        with suppress(RecursionError):  # contains itself
            plain[key] = _data_of(value)
        if (error := _unsafe(key, plain[key])) is not None:
            raise ValueError(
                f"client_state[{key!r}] contains {type(value).__name__}, which cannot be read back "
                "without running code from the file; use plain data and tensors, or allow the "
                f"class with torch.serialization.add_safe_globals ({error})"
            )
        converted.append(key)
    return plain, converted


def _unsafe(key: str, value: Any) -> Exception | None:
    """Return the error if a value cannot be written, or not read back safely."""
    try:
        parse(dump(value), key)
    except (CheckpointError, pickle.PicklingError, AttributeError, TypeError, RecursionError) as e:
        return e
    return None


def _data_of(value: Any) -> Any:
    """Return the plain data of an object, recursively; other objects unchanged."""
    match value:
        case Enum():
            return _data_of(value.value)
        case SimpleNamespace() | argparse.Namespace():
            return {name: _data_of(item) for name, item in vars(value).items()}
        case Mapping():
            return {_data_of(name): _data_of(item) for name, item in value.items()}
        case PurePath():
            return pathlib.PurePosixPath(value)
    for kind in _SCALARS:
        if isinstance(value, kind):
            return kind(value)
    for kind in _COLLECTIONS:
        if isinstance(value, kind):
            return kind(_data_of(item) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _data_of(getattr(value, field.name)) for field in fields(value)}
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return cast(Any, value).item()
    return value


def random_state() -> dict[str, Any]:
    """Return the state of this process's generators as plain data and tensors."""
    name, keys, position, has_gauss, gauss = numpy.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": list(random.getstate()),
        "numpy": [
            str(name),
            torch.from_numpy(numpy.asarray(keys, dtype=numpy.int64)),
            int(position),
            int(has_gauss),
            float(gauss),
        ],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Restore what ``random_state`` returned."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    numpy.random.set_state((name, keys.numpy().astype(numpy.uint32), position, has_gauss, cached))


ADDED = (
    "buffer_names",
    "param_shapes",
    "shared_params",
    "global_samples",
    "checkpoint_parallel_dimensions",
    "ds_config",
    "ds_version",
)


def without_run_state(client_state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the script's own entries."""
    return {key: value for key, value in client_state.items() if key not in ADDED}


def run_state(manifest: Manifest, small: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries for a checkpoint of dsengine; ``small``: its small states."""
    is_sharded = manifest.description.get("stage", 0) > 0
    groups = [group["names"] for group in (small["optimizer"] or {}).get("groups", [])]
    return {
        "buffer_names": list(manifest.buffers),
        "param_shapes": [
            {name: Size(manifest.weights[name]) for name in names if name in manifest.weights}
            for names in groups
        ]
        if is_sharded
        else None,
        "shared_params": dict(manifest.tied) if is_sharded else None,
        "global_samples": small["parts"].get("counters", {}).get("global_samples", 0),
        "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 1},
        "ds_config": dict(manifest.description.get("config") or {}),
        "ds_version": DEEPSPEED,
    }
