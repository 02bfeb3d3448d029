"""The small states of a checkpoint: written with torch.save, read without running code."""

import argparse
import collections
import datetime
import io
import pathlib
import pickle
from pathlib import Path
from typing import Any

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


def check_client_state(client_state: dict[str, Any]) -> None:
    """Raise ValueError when a value could be written but not read back safely."""
    for key, value in client_state.items():
        try:
            parse(dump(value), key)
        except (CheckpointError, pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"client_state[{key!r}] holds {type(value).__name__}, which cannot be read back "
                "without running code from the file; store plain data and tensors, or allow the "
                f"class with torch.serialization.add_safe_globals ({error})"
            ) from None
