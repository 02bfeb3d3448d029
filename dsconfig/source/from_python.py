"""A config dict literal in a Python file, read without running the file."""

import ast
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dsconfig.source import findings
from dsconfig.source.document import (
    Document,
    Format,
    broken,
    count_distinctive,
    finish,
    too_deep,
    unreadable,
)
from dsconfig.source.pointer import escape
from dsconfig.source.positions import LineIndex, Offsets, Spans

MAX_EXPONENT = 128
"""Exponents above this are not worked out."""
MAX_BITS = 4096
"""Integers above this size are not worked out: no key of a config holds one."""
OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Pow: lambda left, right: left**right,
}


class _Unknown(Exception):
    """An expression whose value only running the program would tell."""


@dataclass(slots=True)
class _Walker:
    """Values and places of one dict literal."""

    text: str
    lines: LineIndex
    constants: dict[str, ast.expr]
    places: dict[str, Offsets] = field(default_factory=dict[str, Offsets])
    unknown: set[str] = field(default_factory=set[str])
    duplicates: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])

    def offsets(self, node: ast.expr) -> tuple[int, int]:
        start = self._offset(node.lineno, node.col_offset)
        return start, self._offset(node.end_lineno or node.lineno, node.end_col_offset or 0)

    def _offset(self, line: int, column: int) -> int:
        """``ast`` counts columns in bytes of UTF-8."""
        content = self.lines.line(line)
        if not content.isascii():
            column = len(content.encode()[:column].decode("utf-8", "ignore"))
        return self.lines.starts[line - 1] + column

    def value(self, node: ast.expr, pointer: str, key: tuple[int, int] = (-1, -1)) -> Any:
        start, end = self.offsets(node)
        self.places[pointer] = (*key, start, end)
        if isinstance(node, ast.Dict):
            return self.mapping(node, pointer)
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self.value(item, f"{pointer}/{index}") for index, item in enumerate(node.elts)]
        try:
            return self.constant(node)
        except (_Unknown, ArithmeticError, TypeError, ValueError):
            self.unknown.add(pointer)
            return self.text[start:end]

    def mapping(self, node: ast.Dict, pointer: str) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                self.unknown.add(pointer)  # {**other} or a key that is worked out
                continue
            here = f"{pointer}/{escape(key.value)}"
            place = self.offsets(key)
            if key.value in out:
                self.duplicates.append((here, *place))
            out[key.value] = self.value(item, here, place)
        return out

    def constant(self, node: ast.expr) -> Any:
        """A literal, simple arithmetic, ``float("inf")``, or a constant of the module."""
        if isinstance(node, ast.Constant):
            if isinstance(node.value, (bool, int, float, str)) or node.value is None:
                return node.value
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.constant(node.operand)
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            left, right = self.constant(node.left), self.constant(node.right)
            if isinstance(left, (int, float)) and isinstance(right, (int, float)):
                if _is_too_large(node.op, left, right):
                    raise _Unknown
                return OPERATORS[type(node.op)](left, right)
        elif isinstance(node, ast.Name) and node.id in self.constants:
            return self.constant(self.constants.pop(node.id))
        elif isinstance(node, ast.Call):
            return _float_call(node)
        raise _Unknown


def _is_too_large(kind: ast.operator, left: float, right: float) -> bool:
    """Whether to work an operation out would take longer than reading the file."""
    if isinstance(kind, ast.Pow) and not 0 <= right <= MAX_EXPONENT:
        return True
    bits = [each.bit_length() if isinstance(each, int) else 0 for each in (left, right)]
    return (bits[0] * right if isinstance(kind, ast.Pow) else sum(bits)) > MAX_BITS


def _float_call(node: ast.Call) -> float:
    """``float("inf")`` and its like."""
    name, arguments = node.func, node.args
    if isinstance(name, ast.Name) and name.id == "float" and len(arguments) == 1:
        word = arguments[0]
        if isinstance(word, ast.Constant) and isinstance(word.value, str):
            return float(word.value)
    raise _Unknown


def document_from_python(text: str, name: str) -> Document:
    """The dict literal in a Python text that looks most like a ds_config."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return _no_python(text, name, error)
    except (ValueError, RecursionError, MemoryError):
        return unreadable(name, text, too_deep())
    literal = _best_literal(tree)
    if literal is None:
        message = "this Python file holds no dict literal with keys of a ds_config"
        help = "write the config as one literal, or save it as JSON"
        return broken(name, text, Format.PYTHON, findings.no_config_inside(message, help))
    walker = _Walker(text, LineIndex(text), _constants(tree))
    value = walker.value(literal, "")
    spans = Spans(text, walker.places)
    repeated = tuple(
        findings.duplicate_key(pointer, spans.lines.range(start, end), in_file=False)
        for pointer, start, end in walker.duplicates
    )
    unknown = frozenset(walker.unknown)
    return finish(Document(name, value, Format.PYTHON, text, spans, repeated, unknown))


def _best_literal(tree: ast.Module) -> ast.Dict | None:
    """The first of the literals with the most count_distinctive keys."""
    best, most = None, 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            count = count_distinctive(
                key.value for key in node.keys if isinstance(key, ast.Constant)
            )
            if count > most:
                best, most = node, count
    return best


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Names the module gives a value once."""
    given = [
        (target.id, node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    times = Counter(name for name, _ in given)
    return {name: value for name, value in given if times[name] == 1}


def _no_python(text: str, name: str, error: SyntaxError) -> Document:
    lines = LineIndex(text)
    line = min(max(error.lineno or 1, 1), len(lines.starts))
    at = min(lines.starts[line - 1] + max((error.offset or 1) - 1, 0), len(text))
    problem = findings.syntax_error(f"this is no Python: {error.msg}", "", lines.range(at, at + 1))
    return broken(name, text, Format.PYTHON, problem)
