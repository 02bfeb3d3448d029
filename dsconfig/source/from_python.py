"""Read the config dict literal of a Python file without executing it."""

import ast
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from dsconfig.schema.paths import escape
from dsconfig.source import findings
from dsconfig.source.document import (
    Document,
    Format,
    broken,
    count_distinctive,
    finish,
    unreadable,
)
from dsconfig.source.plain import TOO_MANY_DIGITS
from dsconfig.source.positions import LineIndex, Offsets, Spans
from dsconfig.source.python_settings import OPERATORS, arguments_in

MAX_EXPONENT = 128
"""Larger exponents are not evaluated."""
MAX_BITS = 4096
"""Larger integers are not evaluated."""


class _Unknown(Exception):
    """An expression whose value is known only at run time."""


@dataclass(slots=True)
class _Walker:
    """Evaluates one dict literal and records positions."""

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
        """Return an offset; ``ast`` counts columns in UTF-8 bytes."""
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
                self.unknown.add(pointer)  # {**other} or a computed key
                continue
            here = f"{pointer}/{escape(key.value)}"
            place = self.offsets(key)
            if key.value in out:
                self.duplicates.append((here, *place))
            out[key.value] = self.value(item, here, place)
        return out

    def constant(self, node: ast.expr) -> Any:
        """Evaluate a literal, simple arithmetic, ``float("inf")``, or a module constant.

        Iterative, because a chain of operators is as deep as it is long.
        """
        waiting: list[ast.expr | ast.operator | ast.unaryop] = [node]
        results: list[Any] = []
        while waiting:
            part = waiting.pop()
            if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub):
                waiting += (part.op, part.operand)
            elif isinstance(part, ast.BinOp) and type(part.op) in OPERATORS:
                waiting += (part.op, part.right, part.left)
            elif isinstance(part, ast.Name) and part.id in self.constants:
                waiting.append(self.constants.pop(part.id))
            elif isinstance(part, ast.unaryop):
                results.append(-results.pop())
            elif isinstance(part, ast.operator):
                right, left = results.pop(), results.pop()
                results.append(_computed(part, left, right))
            else:
                results.append(_literal(part))
        return results.pop()


def _literal(node: ast.expr) -> Any:
    """Return the value of a constant or of ``float("inf")``. Raises _Unknown for others."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, (bool, int, float, str)) or node.value is None:
            return node.value
    elif isinstance(node, ast.Call):
        return _float_call(node)
    raise _Unknown


def _computed(kind: ast.operator, left: Any, right: Any) -> Any:
    """Return the result of an operation on two numbers. Raises _Unknown for others."""
    if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        raise _Unknown
    if _is_too_large(kind, left, right):
        raise _Unknown
    return OPERATORS[type(kind)](left, right)


def _is_too_large(kind: ast.operator, left: float, right: float) -> bool:
    """Return whether the result of an operation would be too large to evaluate."""
    if isinstance(kind, ast.Pow) and not 0 <= right <= MAX_EXPONENT:
        return True
    bits = [value.bit_length() if isinstance(value, int) else 0 for value in (left, right)]
    return (bits[0] * right if isinstance(kind, ast.Pow) else sum(bits)) > MAX_BITS


def _float_call(node: ast.Call) -> float:
    """Evaluate ``float("inf")`` and the like."""
    name, arguments = node.func, node.args
    if isinstance(name, ast.Name) and name.id == "float" and len(arguments) == 1:
        word = arguments[0]
        if isinstance(word, ast.Constant) and isinstance(word.value, str):
            return float(word.value)
    raise _Unknown


def document_from_python(text: str, name: str) -> Document:
    """Read the dict literal that looks most like a ds_config."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return _invalid_python(text, name, error)
    except (ValueError, RecursionError, MemoryError):
        message = "an expression is nested too deeply for Python's parser"
        return unreadable(name, text, findings.unreadable(message, "write the config as literals"))
    literal = _best_literal(tree)
    if literal is None:
        message = "this Python file contains no dict literal with ds_config keys"
        help = "write the config as one dict literal, or save it as JSON"
        return broken(name, text, Format.PYTHON, findings.no_config_inside(message, help))
    walker = _Walker(text, LineIndex(text), _constants(tree))
    value = walker.value(literal, "")
    spans = Spans(text, walker.places)
    repeated = tuple(
        findings.duplicate_key(pointer, spans.lines.range(start, end), in_file=False)
        for pointer, start, end in walker.duplicates
    )
    unknown = frozenset(walker.unknown)
    document = Document(name, value, Format.PYTHON, text, spans, repeated, unknown)
    return finish(document._replace(container=arguments_in(tree)))


def _best_literal(tree: ast.Module) -> ast.Dict | None:
    """Return the first dict literal with the most distinctive keys."""
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
    """Return module-level names that are assigned exactly once."""
    assignments = [
        (target.id, node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    times = Counter(name for name, _ in assignments)
    return {name: value for name, value in assignments if times[name] == 1}


def _invalid_python(text: str, name: str, error: SyntaxError) -> Document:
    lines = LineIndex(text)
    line = min(max(error.lineno or 1, 1), len(lines.starts))
    at = min(lines.starts[line - 1] + max((error.offset or 1) - 1, 0), len(text))
    why = TOO_MANY_DIGITS if error.msg.startswith("Exceeds the limit") else error.msg
    problem = findings.syntax_error(f"invalid Python: {why}", "", lines.range(at, at + 1))
    return broken(name, text, Format.PYTHON, problem)
