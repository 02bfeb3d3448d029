"""Evaluate a subset of Python's expressions over names, without executing anything.

Dialects of programs state facts this way, and the arithmetic of shells is translated to it.
"""

import ast
import math
import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

LONGEST = 4_000
"""Letters of an expression that is evaluated."""
_LARGEST = 2**63


class Unknown(Exception):
    """A name whose value is not known, or an operation that its values do not have."""


class InvalidExpression(ValueError):
    """Text that is not an expression of this subset."""


def _lower(text: object) -> str:
    return str(text).lower()


def _startswith(text: object, prefix: str) -> bool:
    return str(text).startswith(prefix)


def _endswith(text: object, suffix: str) -> bool:
    return str(text).endswith(suffix)


def _in(one: Any, many: Any) -> bool:
    return one in many


def _not_in(one: Any, many: Any) -> bool:
    return one not in many


_OPERATORS: Any = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: cast("Any", operator).truediv,
    ast.FloorDiv: cast("Any", operator).floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: _in,
    ast.NotIn: _not_in,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_FUNCTIONS: Any = {
    "max": max,
    "min": min,
    "ceil": math.ceil,
    "int": int,
    "len": len,
    "lower": _lower,
    "startswith": _startswith,
    "endswith": _endswith,
}


@lru_cache(maxsize=1024)
def parsed(text: str) -> ast.expr:
    """Return the tree of an expression. Raises InvalidExpression."""
    try:
        if len(text) > LONGEST:
            raise InvalidExpression("too long")
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise InvalidExpression(f"{text[:80]!r} is not an expression: {error}") from None


def evaluate(text: str, value_of: Callable[[str], Any]) -> Any:
    """Return the value of an expression; ``value_of`` is called for each name that decides it.

    Dotted names are one name. Raises Unknown if a name is, or if the values do not allow an
    operation; InvalidExpression for other text.
    """
    try:
        return _Evaluation(value_of).value(parsed(text))
    except RecursionError:
        raise InvalidExpression(f"{text[:80]!r} is nested too deeply") from None


def names_in(text: str) -> list[str]:
    """Return the names of an expression, in order."""
    found: list[str] = []
    pending: list[ast.AST] = [parsed(text)]
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.Name | ast.Attribute):
            found.append(_dotted(node))
        else:
            function = node.func if isinstance(node, ast.Call) else None
            inner = (each for each in ast.iter_child_nodes(node) if each is not function)
            pending = [*inner, *pending]
    return list(dict.fromkeys(found))


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise InvalidExpression("an attribute of something that is not a name")


class _Evaluation:
    def __init__(self, value_of: Callable[[str], Any]) -> None:
        self.value_of = value_of

    def value(self, node: ast.expr) -> Any:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise InvalidExpression(f"{type(node).__name__} is not supported")
        try:
            return method(node)
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            if isinstance(error, InvalidExpression):
                raise
            raise Unknown(str(error)) from None

    def _constant(self, node: ast.Constant) -> Any:
        return node.value

    def _name(self, node: ast.Name) -> Any:
        return self.value_of(node.id)

    def _attribute(self, node: ast.Attribute) -> Any:
        return self.value_of(_dotted(node))

    def _tuple(self, node: ast.Tuple | ast.List) -> tuple[Any, ...]:
        return tuple(map(self.value, node.elts))

    _list = _tuple

    def _boolop(self, node: ast.BoolOp) -> Any:
        wanted = isinstance(node.op, ast.Or)
        result: Any = None
        for part in node.values:
            result = self.value(part)
            if bool(result) is wanted:
                break
        return result

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return not value
        return -value if isinstance(node.op, ast.USub) else +value

    def _binop(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        apply = _OPERATORS.get(type(node.op))
        if apply is None:
            raise InvalidExpression(f"{type(node.op).__name__} is not supported")
        texts = isinstance(left, str) or isinstance(right, str)
        if texts and not isinstance(node.op, ast.Add):
            raise Unknown("an operation of texts")
        result = apply(left, right)
        if isinstance(result, int | float) and not abs(result) < _LARGEST:
            raise Unknown("a number out of range")
        return result

    def _compare(self, node: ast.Compare) -> bool:
        left = self.value(node.left)
        for sign, part in zip(node.ops, node.comparators, strict=True):
            right = self.value(part)
            if not _OPERATORS[type(sign)](left, right):
                return False
            left = right
        return True

    def _ifexp(self, node: ast.IfExp) -> Any:
        return self.value(node.body if self.value(node.test) else node.orelse)

    def _call(self, node: ast.Call) -> Any:
        name = cast("Any", node.func).id if isinstance(node.func, ast.Name) else ""
        function = _FUNCTIONS.get(name)
        if function is None or node.keywords:
            raise InvalidExpression(f"{name or 'this call'} is not supported")
        return function(*map(self.value, node.args))
