"""Settings in a Python file, read without executing it: its names, and the calls that configure.

A config that is a module (xtuner) is the value of its names; a script has settings in calls such as
``SFTConfig(...)``, ``LoraConfig(...)`` and ``AutoModelForCausalLM.from_pretrained(...)``.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dsconfig.source.from_python import OPERATORS
from dsconfig.source.pointer import is_block, is_list

MOST_NODES = 20_000
"""Nodes of a file that are read."""
DEEPEST = 40
UNKNOWN: Any = object()
"""A value that is known only at run time."""


class Setting(NamedTuple):
    """A value and its line."""

    value: Any
    line: int


class Call(NamedTuple):
    """A call with its keywords: the last parts of its name, and its first argument."""

    name: tuple[str, ...]
    keywords: Mapping[str, Setting]
    first: Setting | None
    line: int


@dataclass(slots=True)
class _Module:
    """The names of a module; one that is assigned twice has its last value."""

    names: dict[str, ast.expr] = field(default_factory=dict[str, ast.expr])
    pending: set[str] = field(default_factory=set[str])

    def value(self, node: ast.expr, depth: int = 0) -> Any:
        """Return a value in JSON types; a class or function is its name."""
        if depth > DEEPEST:
            return UNKNOWN
        match node:
            case ast.Constant():
                return node.value if isinstance(node.value, bool | int | float | str) else None
            case ast.Name():
                return self._named(node.id, depth)
            case ast.Attribute():
                return ".".join(_parts(node)[-2:]) if _parts(node)[0] != "torch" else node.attr
            case ast.List() | ast.Tuple() | ast.Set():
                return [self.value(each, depth + 1) for each in node.elts]
            case ast.Dict():
                pairs = zip(node.keys, node.values, strict=True)
                return {
                    str(key.value): self.value(each, depth + 1)
                    for key, each in pairs
                    if isinstance(key, ast.Constant)
                }
            case ast.Call():
                own = {
                    word.arg: self.value(word.value, depth + 1)
                    for word in node.keywords
                    if word.arg is not None
                }
                name = _parts(node.func)[-1]
                return own if name == "dict" else {"type": name, **own}
            case ast.UnaryOp(op=ast.USub()):
                inner = self.value(node.operand, depth + 1)
                return -inner if isinstance(inner, int | float) else UNKNOWN
            case ast.BinOp():
                return self._computed(node, depth)
            case _:
                return UNKNOWN

    def _named(self, name: str, depth: int) -> Any:
        node = self.names.get(name)
        if node is None:
            return name  # imported
        if name in self.pending:
            return UNKNOWN
        self.pending.add(name)
        try:
            return self.value(node, depth + 1)
        finally:
            self.pending.discard(name)

    def _computed(self, node: ast.BinOp, depth: int) -> Any:
        left, right = self.value(node.left, depth + 1), self.value(node.right, depth + 1)
        apply = OPERATORS.get(type(node.op))
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if apply is None or not numbers or isinstance(node.op, ast.Pow):
            return UNKNOWN
        try:
            return apply(left, right)
        except (ArithmeticError, ValueError):
            return UNKNOWN


def _parts(node: ast.expr) -> list[str]:
    """Return the parts of a dotted name."""
    if isinstance(node, ast.Attribute):
        return [*_parts(node.value), node.attr]
    return [node.id] if isinstance(node, ast.Name) else [""]


def _module(tree: ast.Module) -> _Module:
    module = _Module()
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    module.names[target.id] = node.value
        elif isinstance(node, ast.AnnAssign) and node.value and isinstance(node.target, ast.Name):
            module.names[node.target.id] = node.value
    return module


def _tree(text: str) -> ast.Module | None:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree if sum(1 for _ in ast.walk(tree)) <= MOST_NODES else None


def names_in(text: str) -> dict[str, Setting]:
    """Return the names that a module assigns, those of dicts with dots; {} for invalid Python.

    Of a list of dicts, the last one counts.
    """
    tree = _tree(text)
    if tree is None:
        return {}
    module = _module(tree)
    found: dict[str, Setting] = {}
    for name, node in module.names.items():
        value = module.value(node)
        for dotted, inner in _flat(name, value):
            found[dotted] = Setting(inner, node.lineno)
    return found


def _flat(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    last: Any = value[-1] if is_list(value) and value else value
    if is_block(last) and depth < DEEPEST:
        for key, inner in last.items():
            yield from _flat(f"{name}.{key}", inner, depth + 1)
        return
    yield name, value


def calls_in(text: str) -> Iterator[Call]:
    """Yield the calls of a script, in order."""
    tree = _tree(text)
    if tree is None:
        return
    module = _module(tree)
    inner = _Module({**module.names, **_local_names(tree)})
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for node in sorted(found, key=lambda each: (each.lineno, each.col_offset)):
        keywords = {
            word.arg: Setting(inner.value(word.value), word.value.lineno)
            for word in node.keywords
            if word.arg is not None
        }
        first = Setting(inner.value(node.args[0]), node.args[0].lineno) if node.args else None
        yield Call(tuple(_parts(node.func)), keywords, first, node.lineno)


def _local_names(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the names that functions assign once."""
    found: dict[str, ast.expr] = {}
    twice: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            twice |= {name} if name in found else set()
            found[name] = node.value
    return {name: value for name, value in found.items() if name not in twice}
