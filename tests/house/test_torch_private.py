"""Private names of torch are used in one package of the engine."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[2] / "engine" / "dsengine"
HOME = ENGINE / "torch_private"
EXEMPT = {"_pytree", "_python_dispatch"}
"""Private modules that torch's documentation recommends."""
OTHERS = {"_current_frames", "_exit", "_gradient_checkpointing_func"}
"""Documented names of Python, and of transformers."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in EXEMPT | OTHERS


def defined(tree: ast.Module) -> Iterator[str]:
    """Yield names that a file defines: functions, classes, fields, attributes of ``self``."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name


def members(tree: ast.Module) -> Iterator[str]:
    """Yield methods and annotated fields of a file's classes, which other files may use."""
    for kind in ast.walk(tree):
        for node in kind.body if isinstance(kind, ast.ClassDef) else ():
            if isinstance(node, ast.FunctionDef):
                yield node.name
                yield from defined(ast.Module([node], []))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id


def foreign(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """Yield private names in a file that this project does not define."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if is_private(name) and name not in own:
                yield f"{node.lineno}: {ast.unparse(node)}"
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("torch"):
                if any(map(is_private, (*module.split("."), *(alias.name for alias in names)))):
                    yield f"{node.lineno}: {ast.unparse(node)}"
            case ast.Import(names=names):
                if any(map(is_private, ".".join(alias.name for alias in names).split("."))):
                    yield f"{node.lineno}: {ast.unparse(node)}"


def test_private_torch_names_are_in_one_package() -> None:
    trees = {
        path: ast.parse(path.read_text())
        for path in sorted(ENGINE.rglob("*.py"))
        if HOME not in path.parents
    }
    shared = {name for tree in trees.values() for name in members(tree)}
    shared -= {"_parameters", "_buffers", "_apply"}  # ours where they are set, else torch's
    found = [
        f"{path.relative_to(ENGINE)}:{each}"
        for path, tree in trees.items()
        for each in foreign(tree, shared | set(defined(tree)))
    ]
    assert found == [], "put it into torch_private, with a reason and a contract test"


@pytest.mark.parametrize(
    "text",
    [
        "from torch._C import x",
        "import torch._inductor.config",
        "from torch.distributed.fsdp import _fully_shard",
        "def f(unit):\n    return unit._get_fsdp_state()",
        "class A:\n    def f(self):\n        return self._version",
    ],
)
def test_scan_detects_private_names(text: str) -> None:
    assert list(foreign(ast.parse(text), set(defined(ast.parse(text)))))
