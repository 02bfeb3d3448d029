"""The house: who may import whom, and what nobody may import."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = [
    ("lazily",),
    ("report",),
    ("schema",),
    ("source",),
    ("mesh",),
    ("facts",),
    ("runtimes",),
    ("units",),
    ("cost",),
    ("resolver",),
    ("checks",),
    ("planner",),
    ("api", "__init__"),
    ("commands",),
    ("__main__",),
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
FOREIGN = {"torch", "transformers", "deepspeed", "accelerate"}


def imported(path: Path) -> set[str]:
    """Full names of the modules a file imports, at any depth of nesting."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT / "dsconfig").parts
    return parts[0].removesuffix(".py")


SOURCES = sorted((ROOT / "dsconfig").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_imports_only_rooms_below_it(path: Path) -> None:
    own = LEVEL[room_of(path)]
    if room_of(path) == "__init__":
        return
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "dsconfig" and len(parts) > 1 and parts[1] in LEVEL:
            assert LEVEL[parts[1]] <= own, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_in_dsconfig_imports_a_training_framework(path: Path) -> None:
    assert not {name.split(".")[0] for name in imported(path)} & FOREIGN


def test_the_engine_is_imported_only_inside_functions_of_commands() -> None:
    for path in SOURCES:
        tops = {
            name.split(".")[0]
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in imported_by(node)
        }
        assert "dsengine" not in tops
        if "dsengine" in {name.split(".")[0] for name in imported(path)}:
            assert room_of(path) == "commands"


def imported_by(node: ast.Import | ast.ImportFrom) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    return {node.module or ""}


def test_no_code_outside_runtimes_asks_which_runtime_it_is() -> None:
    for path in SOURCES:
        if room_of(path) == "runtimes":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                words = {
                    each.value
                    for each in ast.walk(node)
                    if isinstance(each, ast.Constant) and isinstance(each.value, str)
                }
                names = ast.unparse(node.left)
                asks = "runtime" in names.lower() and words & {
                    "deepspeed",
                    "dsengine",
                    "transformers",
                    "accelerate",
                }
                assert not asks, f"{path}:{node.lineno} {ast.unparse(node)}"


def test_the_engine_uses_only_the_public_surface() -> None:
    import dsconfig

    for path in (ROOT / "engine" / "dsengine").rglob("*.py"):
        for name in imported(path):
            parts = name.split(".")
            if parts[0] == "dsconfig" and len(parts) > 1:
                assert parts[1] in dsconfig.__all__, f"{path.name} imports {name}"
