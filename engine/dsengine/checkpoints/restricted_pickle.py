"""Unpickling of plain data: a file can neither run nor change anything of the program.

[Note: names in a pickle]
A pickle refers to classes and functions by name, and may call them and set their attributes. A
list of allowed names is therefore not sufficient: ``argparse.Namespace`` is harmless to create, but
a file that sets an attribute on the class itself changes it for the whole process. Here a name
becomes a ``Name``, an immutable object with the functions that create and fill in an object. No
class and no function is ever on the unpickler's stack. BUILD, which sets attributes, accepts only
objects that the same file has created; items are added only to containers of the builtin kinds.
"""

import collections
import pickle
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import Any, ClassVar, NoReturn

import torch

from dsengine.checkpoints.group import CheckpointError

Fill = Callable[[Any, Any], object]
"""Sets the stored state of a new object."""
_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_InPython: Any = vars(pickle)["_Unpickler"]
"""Python's unpickler, in which single opcodes can be overridden; C's does not allow it."""


@dataclass(frozen=True, slots=True)
class Name:
    """A class or function as a file may use it; None: not at all."""

    text: str
    create: Callable[..., Any] | None = None
    fill: Fill | None = None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Create an object. Raises CheckpointError if that is not allowed."""
        if self.create is None:
            raise CheckpointError(f"it calls {self.text}, which is not allowed in a checkpoint")
        return self.create(*arguments, **named)

    def __repr__(self) -> str:
        return self.text


def set_attributes(instance: Any, state: Any) -> None:
    """Set the attributes in ``state``, a dict or the pair of a dict and a dict of slots."""
    parts = state if isinstance(state, tuple) else (state,)
    for part in parts:
        if part is not None:
            vars(instance).update(_attributes(part))


def ignore_attributes(instance: Any, state: Any) -> None:
    """Ignore the attributes in ``state``, such as those that torch adds to a state dict."""
    del instance
    _attributes(state)


def _attributes(state: Any) -> dict[str, Any]:
    if type(state) is not dict or not all(type(name) is str for name in state):
        raise CheckpointError("it sets attributes that are not named")
    return state


def data_class(kind: type) -> Name:
    """Return the ``Name`` of a class whose objects are only data: a dataclass, enum or tuple."""
    text = f"{kind.__module__}.{kind.__qualname__}"
    if not is_dataclass(kind):
        return Name(text, kind)
    own = getattr(kind, "__setstate__", None)
    return Name(text, lambda: object.__new__(kind), own or set_attributes)


def dtype_named(module: str, name: str) -> torch.dtype | None:
    """Return torch's dtype of this name, if it is one."""
    found = getattr(torch, name, None) if module == "torch" else None
    return found if isinstance(found, torch.dtype) else None


class DataUnpickler(_InPython):
    """Unpickles data whose names ``named`` knows.

    ``load`` raises CheckpointError for anything else, and other exceptions for damaged data.
    """

    def __init__(self, file: Any, **options: Any) -> None:
        super().__init__(file, **options)
        self._unfilled: dict[int, tuple[Any, Fill]] = {}
        """By id, each object created here and what sets its state."""

    def named(self, module: str, name: str) -> Any:
        """Return the ``Name`` or constant of this name; None if it is not allowed."""
        raise NotImplementedError

    def find_class(self, module: str, name: str) -> Any:
        if module == "__builtin__":  # Python 2's names, which protocol 2 uses
            module, name = "builtins", "int" if name == "long" else name
        found = self.named(module, name)
        if found is None:
            raise CheckpointError(
                f"it refers to {module}.{name}, which is not allowed in a checkpoint"
            )
        return found

    def _create(self, name: Any, arguments: Any, named: Any) -> None:
        if not isinstance(name, Name):
            raise CheckpointError(f"it calls a {type(name).__name__}, not a class")
        created = name(*arguments, **named)
        if name.fill is not None:
            self._unfilled[id(created)] = (created, name.fill)
        self.append(created)

    def load_reduce(self) -> None:
        arguments, name = self.stack.pop(), self.stack.pop()
        self._create(name, arguments, {})

    def load_newobj_ex(self) -> None:
        named, arguments, name = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self._create(name, arguments, named)

    def load_build(self) -> None:
        state, instance = self.stack.pop(), self.stack[-1]
        _, fill = self._unfilled.get(id(instance), (None, None))
        if fill is None:
            kind = instance if isinstance(instance, Name) else f"a {type(instance).__name__}"
            raise CheckpointError(f"it sets attributes of {kind}, which is not allowed")
        fill(instance, state)

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._container(*_DICTS)[key] = value

    def load_setitems(self) -> None:
        items = self.pop_mark()
        target = self._container(*_DICTS)
        target.update(zip(items[::2], items[1::2], strict=True))

    def load_append(self) -> None:
        value = self.stack.pop()
        self._container(list).append(value)

    def load_appends(self) -> None:
        items = self.pop_mark()
        self._container(list).extend(items)

    def load_additems(self) -> None:
        items = self.pop_mark()
        self._container(set).update(items)

    def _container(self, *kinds: type) -> Any:
        target = self.stack[-1]
        if type(target) not in kinds:
            raise CheckpointError(f"it adds items to a {type(target).__name__}")
        return target

    def _refuse(self) -> NoReturn:
        raise CheckpointError("it uses an outdated way to refer to code")

    _METHODS: ClassVar = {
        pickle.REDUCE: load_reduce,
        pickle.NEWOBJ: load_reduce,
        pickle.NEWOBJ_EX: load_newobj_ex,
        pickle.BUILD: load_build,
        pickle.SETITEM: load_setitem,
        pickle.SETITEMS: load_setitems,
        pickle.APPEND: load_append,
        pickle.APPENDS: load_appends,
        pickle.ADDITEMS: load_additems,
        **dict.fromkeys((pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.INST, pickle.OBJ), _refuse),
    }
    dispatch: ClassVar = _InPython.dispatch | {code[0]: run for code, run in _METHODS.items()}


def reason_of(error: Exception) -> str:
    """Return the first line of an error's message, or its type."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
