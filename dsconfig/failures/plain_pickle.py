"""Read pickles of plain containers without running code."""

import io
import pickle
from collections.abc import Callable
from typing import Any

_TYPED = {
    ("torch.jit._pickle", "build_intlist"),
    ("torch.jit._pickle", "build_doublelist"),
    ("torch.jit._pickle", "build_boollist"),
    ("torch.jit._pickle", "restore_type_tag"),
}
"""Functions that torch writes for typed containers; they return their first argument."""
_InPython: Any = vars(pickle)["_Unpickler"]
"""Python's unpickler: C's allocates as much memory as a damaged file states."""


class _First:
    """A function that returns its first argument, without attributes that a file could set."""

    __slots__ = ()

    def __call__(self, value: object, *others: object) -> object:
        return value


class _ContainerUnpickler(_InPython):
    """Imports nothing: returns a typed container for a known name and rejects all others."""

    def find_class(self, module: str, name: str) -> Callable[..., object]:
        if (module, name) not in _TYPED:
            raise ValueError(f"the pickle names {module}.{name}")
        return _First()


def loads(data: bytes) -> Any:
    """Return the containers of a pickle. Raises ValueError for anything else."""
    try:
        return _ContainerUnpickler(io.BytesIO(data)).load()
    except ValueError:
        raise
    except Exception as error:  # damaged data can raise anything
        raise ValueError(f"the pickle is damaged: {type(error).__name__}: {error}") from None
