"""Read pickles of plain containers without running code.

An interpreter of the opcodes that build dicts, lists, tuples, texts and numbers. Names of classes
and functions are never imported: those that torch writes for typed containers stand for the
container itself, every other one is an error.
"""

import io
import pickletools
from collections.abc import Callable
from typing import Any

MOST_OPCODES = 20_000_000
_IDENTITY = {
    ("torch.jit._pickle", "build_intlist"),
    ("torch.jit._pickle", "build_doublelist"),
    ("torch.jit._pickle", "build_boollist"),
    ("torch.jit._pickle", "restore_type_tag"),
}
"""Functions that return their first argument."""
_MARK = object()
_CONSTANTS = {
    "NONE": None,
    "NEWTRUE": True,
    "NEWFALSE": False,
}
_LITERALS = {
    "INT",
    "LONG",
    "LONG1",
    "LONG4",
    "BININT",
    "BININT1",
    "BININT2",
    "FLOAT",
    "BINFLOAT",
    "STRING",
    "BINSTRING",
    "SHORT_BINSTRING",
    "UNICODE",
    "BINUNICODE",
    "BINUNICODE8",
    "SHORT_BINUNICODE",
    "BINBYTES",
    "BINBYTES8",
    "SHORT_BINBYTES",
}
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_LIST": list[Any],
    "EMPTY_DICT": dict[Any, Any],
    "EMPTY_TUPLE": tuple[Any, ...],
}


class _Identity:
    """A function that returns its first argument."""


def loads(data: bytes) -> Any:
    """Return the containers of a pickle. Raises ValueError for anything else."""
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(io.BytesIO(data))):
            if count > MOST_OPCODES:
                raise ValueError("the pickle is too long")
            if opcode.name == "STOP":
                return machine.stack.pop()
            machine.step(opcode.name, argument)
    except (IndexError, KeyError, TypeError, AttributeError, UnicodeError, OverflowError) as error:
        raise ValueError(f"the pickle is damaged: {error}") from None
    raise ValueError("the pickle is truncated")


class _Machine:
    """Stack and memo of the pickle protocol."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Execute one opcode. Raises ValueError for one that is not plain."""
        stack = self.stack
        if name in ("PROTO", "FRAME"):
            return
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _LITERALS:
            stack.append(argument)
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in ("GLOBAL", "STACK_GLOBAL", "REDUCE"):
            self._call(name, argument)
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self._memo[argument])
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self._memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "POP":
            stack.pop()
        else:
            self._collect(name)

    def _call(self, name: str, argument: Any) -> None:
        """Accept the functions of typed containers only."""
        stack = self.stack
        if name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            if not isinstance(function, _Identity):
                raise ValueError("the pickle calls a function")
            stack.append(arguments[0])
            return
        if name == "GLOBAL":
            module, _, attribute = argument.partition(" ")
        else:
            attribute, module = stack.pop(), stack.pop()
        if (module, attribute) not in _IDENTITY:
            raise ValueError(f"the pickle names {module}.{attribute}")
        stack.append(_Identity())

    def _collect(self, name: str) -> None:
        """Fill a container."""
        stack = self.stack
        if name == "APPEND":
            value = stack.pop()
            stack[-1].append(value)
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            stack[-1][key] = value
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            size = int(name[-1])
            values = tuple(stack[-size:])
            del stack[-size:]
            stack.append(values)
        elif name in ("APPENDS", "SETITEMS", "TUPLE", "LIST", "DICT"):
            values = self._since_mark()
            if name == "APPENDS":
                stack[-1].extend(values)
            elif name == "SETITEMS":
                stack[-1].update(zip(values[::2], values[1::2], strict=True))
            elif name == "DICT":
                stack.append(dict(zip(values[::2], values[1::2], strict=True)))
            else:
                stack.append(tuple(values) if name == "TUPLE" else values)
        else:
            raise ValueError(f"the pickle uses {name}")

    def _since_mark(self) -> list[Any]:
        """Pop the values above the last mark."""
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise ValueError("the pickle is damaged: no mark")
        values = self.stack[place + 1 :]
        del self.stack[place:]
        return values
