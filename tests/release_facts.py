"""What a release of DeepSpeed, transformers or accelerate declares, read from its sources.

Nothing is imported or executed: a new release may need other packages than those installed here.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

AUTO = "auto"
FILLS = frozenset(("fill_match", "fill_only", "is_auto"))
"""Functions of transformers and accelerate that fill in an "auto"."""


@dataclass(frozen=True)
class Program:
    """A program and the files that decide about a ds_config, as glob patterns in its package."""

    name: str
    known: str
    """Newest release whose differences have been examined."""
    files: tuple[str, ...]


PROGRAMS: Mapping[str, Program] = MappingProxyType(
    {
        program.name: program
        for program in (
            Program(
                "deepspeed",
                "0.19.8",
                (
                    "runtime/config*.py",
                    "runtime/constants.py",
                    "runtime/engine.py",
                    "runtime/lr_schedules.py",
                    "runtime/precision_config.py",
                    "runtime/model_checkpointing/*.py",
                    "runtime/activation_checkpointing/config.py",
                    "runtime/zero/*config*.py",
                    "runtime/zero/utils.py",
                    "runtime/**/config.py",
                    "runtime/**/constants.py",
                    "comm/config.py",
                    "compile/config.py",
                    "monitor/config.py",
                    "profiling/config.py",
                    "elasticity/*.py",
                    "autotuning/config.py",
                    "nebula/*.py",
                    "compression/config.py",
                    "compression/constants.py",
                    "inference/config.py",
                    "__init__.py",
                ),
            ),
            Program(
                "transformers",
                "5.24.0",
                ("integrations/deepspeed.py", "training_args.py", "trainer*.py"),
            ),
            Program(
                "accelerate",
                "1.15.0",
                (
                    "utils/dataclasses.py",
                    "utils/deepspeed.py",
                    "commands/launch.py",
                    "commands/config/config_args.py",
                    "accelerator.py",
                ),
            ),
        )
    }
)


@dataclass
class ReleaseFacts:
    """Declarations by kind. A key is ``file: class.name``, a value its source text."""

    keys: dict[str, str] = field(default_factory=dict[str, str])
    """Fields of classes and constants of modules, with their defaults."""
    checks: dict[str, str] = field(default_factory=dict[str, str])
    """``raise`` and ``assert`` statements, with the conditions around them."""
    autos: dict[str, str] = field(default_factory=dict[str, str])
    """Statements and conditions that contain "auto" or call one of ``FILLS``."""


def facts_of(package: Path, program: Program) -> ReleaseFacts:
    """Return what the files of an unpacked package declare. Files of other releases may be absent.

    Raises ValueError if none of the files exists.
    """
    found = ReleaseFacts()
    paths = sorted({path for pattern in program.files for path in package.glob(pattern)})
    if not paths:
        raise ValueError(f"{package} contains none of the files of {program.name}")
    for path in paths:
        tree = ast.parse(path.read_text("utf-8"))
        _Reader(found, path.relative_to(package).as_posix()).read(tree.body, (), ())
    return found


class _Reader:
    """Collects the declarations of one file."""

    def __init__(self, found: ReleaseFacts, file: str) -> None:
        self._found, self._file = found, file

    def read(self, body: list[ast.stmt], scope: tuple[str, ...], inside: tuple[str, ...]) -> None:
        """Read statements of a class or function ``scope``, under the conditions ``inside``."""
        in_function = any(name.endswith("()") for name in scope)
        for statement in body:
            if not in_function:
                self._declared(statement, scope)
            if isinstance(statement, ast.Raise | ast.Assert):
                text = ast.unparse(statement)
                self._add(self._found.checks, scope, text, " and ".join(inside))
            if _simple(statement) and _mentions_auto(statement):
                text = ast.unparse(statement)
                self._add(self._found.autos, scope, text, " and ".join(inside))
            if isinstance(statement, ast.If) and _mentions_auto(statement.test):
                self._add(self._found.autos, scope, f"if {ast.unparse(statement.test)}")
            for inner, name, condition in _nested(statement):
                added = (*scope, name) if name else scope
                self.read(inner, added, (*inside, condition) if condition else inside)

    def _declared(self, statement: ast.stmt, scope: tuple[str, ...]) -> None:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            value = f" = {_without_help(statement.value)}" if statement.value else ""
            text = f"{ast.unparse(statement.annotation)}{value}"
            self._add(self._found.keys, scope, text, name=statement.target.id)
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            text = _without_help(statement.value)
            self._add(self._found.keys, scope, text, name=statement.targets[0].id)

    def _add(
        self,
        into: dict[str, str],
        scope: tuple[str, ...],
        text: str,
        condition: str = "",
        *,
        name: str = "",
    ) -> None:
        place = f"{self._file}: {'.'.join((*scope, name) if name else scope)}"
        key = place if name else f"{place}: {text}"
        into[key] = text if name else condition


def _without_help(value: ast.expr) -> str:
    """Return an expression without help texts, whose wording changes often."""
    if isinstance(value, ast.Call):
        kept = [each for each in value.keywords if each.arg not in ("metadata", "help")]
        value = ast.Call(value.func, value.args, kept)
    return ast.unparse(value)


_COMPOUND = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.If,
    ast.For,
    ast.While,
    ast.With,
    ast.Try,
)


def _simple(statement: ast.stmt) -> bool:
    is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return not isinstance(statement, _COMPOUND) and not is_docstring


def _mentions_auto(statement: ast.AST) -> bool:
    for node in ast.walk(statement):
        if isinstance(node, ast.Constant) and node.value == AUTO:
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if called in FILLS:
                return True
    return False


def _nested(statement: ast.stmt) -> Iterator[tuple[list[ast.stmt], str, str]]:
    """Yield the bodies of a statement, each with the scope and the condition it adds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        yield statement.body, f"{statement.name}()", ""
    elif isinstance(statement, ast.ClassDef):
        yield statement.body, statement.name, ""
    elif isinstance(statement, ast.If):
        condition = ast.unparse(statement.test)
        yield statement.body, "", condition
        yield statement.orelse, "", f"not ({condition})"
    else:
        for name in ("body", "orelse", "finalbody"):
            yield getattr(statement, name, []), "", ""
        for handler in getattr(statement, "handlers", ()):
            yield handler.body, "", ""
