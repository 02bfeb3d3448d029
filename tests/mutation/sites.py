"""Mutation sites in a source, and the mutants."""

import ast
import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
}
IGNORED_KEYWORDS = {"slots", "frozen", "strict", "kw_only", "repr"}
"""Keywords of dataclasses and zip that only guard against programming errors."""


@dataclass(frozen=True)
class Mutant:
    """One mutation: ``new`` replaces the source's bytes ``start`` to ``end``."""

    path: str
    function: str
    """Qualified name; empty for module-level code."""
    lines: range
    statement: range
    start: int
    end: int
    old: str
    new: str
    kind: str
    key: str

    @property
    def where(self) -> str:
        return f"{self.path}:{self.lines.start}"

    @property
    def diff(self) -> str:
        return f"`{self.old}` -> `{self.new}`"

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]


def mutants(path: str, source: str, seed: int) -> list[Mutant]:
    """Return the mutants of the source, at most one per line, chosen by seed and line.

    A mutant's key depends on the line's text and function, so that a sample is stable when other
    lines change.
    """
    by_line: dict[str, tuple[str, Mutant]] = {}
    texts = source.split("\n")
    for mutant in _Walk(path, source).everything():
        text = texts[mutant.lines.start - 1].strip()
        line = f"{path}|{mutant.function}|{text}|{mutant.lines.start}"
        rank = _hash(seed, path, mutant.function, text, mutant.kind, mutant.old, mutant.new)
        if line not in by_line or rank < by_line[line][0]:
            by_line[line] = rank, mutant
    return [
        Mutant(**{**vars(mutant), "key": rank[:10]})  # equal lines share a key
        for rank, mutant in by_line.values()
    ]


def _hash(*parts: object) -> str:
    return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()


class _Walk:
    def __init__(self, path: str, source: str) -> None:
        self.path = path
        self.source = source.encode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.tree = ast.parse(source)
        self.offsets = [0]
        for line in self.source.split(b"\n"):
            self.offsets.append(self.offsets[-1] + len(line) + 1)

    def everything(self) -> Iterator[Mutant]:
        yield from self._below(self.tree, "", "", None)

    def _below(
        self, node: ast.AST, names: str, function: str, statement: ast.stmt | None
    ) -> Iterator[Mutant]:
        for child in ast.iter_child_nodes(node):
            if _is_ignored(child):
                continue
            inner, running, at = names, function, statement
            if isinstance(child, ast.stmt):
                at = child
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{names}.{child.name}".lstrip(".")
            if isinstance(node, ast.FunctionDef) and child in node.body:
                running = names  # a default or a decorator runs outside of it
            for old, new, kind in _mutations(child):
                if at is not None:
                    yield self._mutant(old, new, kind, running, at)
            yield from self._below(child, inner, running, at)

    def _mutant(
        self, old: ast.expr, new: str, kind: str, function: str, statement: ast.stmt
    ) -> Mutant:
        start = self.offsets[old.lineno - 1] + old.col_offset
        assert old.end_lineno and old.end_col_offset is not None and statement.end_lineno
        end = self.offsets[old.end_lineno - 1] + old.end_col_offset
        return Mutant(
            path=self.path,
            function=function,
            lines=range(old.lineno, old.end_lineno + 1),
            statement=range(statement.lineno, statement.end_lineno + 1),
            start=start,
            end=end,
            old=ast.unparse(old),
            new=new,
            kind=kind,
            key="",
        )


def _is_ignored(node: ast.AST) -> bool:
    """Whether a node is a docstring, a message, an assertion or for type checkers only."""
    match node:
        case ast.JoinedStr() | ast.Assert() | ast.Raise():
            return True
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.keyword(arg=name):
            return name in IGNORED_KEYWORDS
    return False


def _mutations(node: ast.AST) -> Iterator[tuple[ast.expr, str, str]]:
    """Yield (node, replacement, kind)."""
    match node:
        case ast.Compare(ops=[operator]):
            for changed in COMPARISONS[type(operator)]:
                new = ast.Compare(node.left, [changed()], node.comparators)
                yield node, _text(new), "comparison turned"
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield node, _text(ast.BoolOp(other, node.values)), "and/or exchanged"
            for index in range(len(node.values)):
                kept = [*node.values[:index], *node.values[index + 1 :]]
                new = kept[0] if len(kept) == 1 else ast.BoolOp(node.op, kept)
                yield node, _text(new), "term dropped"
        case ast.UnaryOp(op=ast.Not()):
            yield node, _text(node.operand), "not dropped"
        case ast.BinOp() if type(node.op) in OPERATORS and not _is_text(node):
            new = ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
            yield node, _text(new), "arithmetic exchanged"
            yield node, _text(node.left), "term dropped"
        case ast.Constant(value=bool()):
            yield node, str(not node.value), "constant flipped"
        case ast.Constant(value=int() | float() as number):
            yield node, str(number + 1), "constant moved"
        case ast.If() | ast.IfExp() | ast.While():
            if isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
                yield node.test, f"(not {ast.unparse(node.test)})", "condition turned"
        case ast.comprehension(ifs=[condition]):
            yield condition, "True", "filter dropped"
        case ast.Return(value=ast.expr() as value) if not _is_nothing(value):
            yield value, "None", "return dropped"


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(side, ast.JoinedStr | ast.List | ast.Tuple)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in sides
    )


def _is_nothing(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
