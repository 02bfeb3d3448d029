"""Import rules between packages."""

import ast
from collections.abc import Container, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = [
    ("lazy_imports", "generated", "launch_env", "os_errors", "docstrings"),
    ("hostfile",),
    ("mesh", "batch", "tiles", "pipelines", "features"),
    ("report",),
    ("schema",),
    ("source",),
    ("facts",),
    ("runtimes",),
    ("units",),
    ("unit_schedule",),
    ("cost",),
    ("checks",),
    ("resolver",),
    ("planner",),
    ("applicable_fixes",),
    (
        "opening",
        "examination",
    ),
    ("reference", "comparison", "failures"),
    ("api", "__init__"),
    ("project",),
    ("conversion",),
    ("editor",),
    ("browser",),
    ("commands",),
    ("__main__", "generate"),
]
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
ENGINE = [
    "loading",
    "release",
    "stderr",
    "startup",
    "torchrun",
    "torch_private",
    "topology",
    "parameters",
    "communication",
    "optimizers",
    "tiers",
    "parallel",
    "sharding",
    "checkpoints",
    "observation",
    "loop",
    "simulation",
    "deepspeed",
    "rendezvous",
    "stop_signals",
    "torchrun_launcher",
    "programs",
    "as_deepspeed",
    "with_deepspeed",
    "unreplaced",
    "__main__",
]
"""The engine's packages, bottom to top. Its ``__init__`` exports names of all of them."""
FOREIGN = {"torch", "transformers", "deepspeed", "accelerate"}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@pytest.fixture(scope="module", autouse=True)
def forget_parsed_files() -> Iterator[None]:
    """Free a million objects, which would slow down garbage collection in other tests."""
    yield
    parsed.cache_clear()


@cache
def imported(path: Path) -> set[str]:
    """Return full names of the modules that a file imports, at any nesting depth."""
    names: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def dotted_name(path: Path, root: Path) -> str:
    """Return the module name of a file."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def type_checking_nodes(tree: ast.Module) -> set[int]:
    """Return the ids of nodes under ``if TYPE_CHECKING``."""
    return {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for each in ast.walk(statement)
    }


def runtime_imports(path: Path, modules: Container[str], *, with_types: bool = False) -> set[str]:
    """Return package modules that a file imports, deferred or not.

    ``with_types``: also those imported for type checking only.
    """
    tree = parsed(path)
    for_types = set[int]() if with_types else type_checking_nodes(tree)
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in modules else node.module for name in names}
    return {name for name in found if name in modules}


def import_cycles(imports: Mapping[str, set[str]]) -> list[tuple[str, ...]]:
    """Return groups of files that import each other."""
    reached: dict[str, set[str]] = {}
    for start in imports:
        seen: set[str] = set()
        waiting = list(imports[start])
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += imports[name]
        reached[start] = seen
    groups = {
        tuple(sorted(each for each in reached[name] if name in reached[each]))
        for name in imports
        if name in reached[name]
    }
    return sorted(groups)


@pytest.mark.parametrize("folder", ["dsconfig", "engine/dsengine"])
def test_no_import_cycles(folder: str) -> None:
    top = (ROOT / folder).parent
    files = {dotted_name(path, top): path for path in (ROOT / folder).rglob("*.py")}
    with_types = folder.startswith("engine")
    imports = {
        name: runtime_imports(path, files, with_types=with_types) - {name}
        for name, path in files.items()
    }
    assert import_cycles(imports) == []


def test_cycles_are_detected_in_any_import(tmp_path: Path) -> None:
    put_off = "with lazy_imports():\n    from p import b\n"
    inside = "def f():\n    if f:\n        from p.c import g\n        g()\n"
    only_types = "if TYPE_CHECKING:\n    from p import a\n    from p.d import x\n"
    (tmp_path / "p").mkdir()
    for name, text in {"a": put_off, "b": inside, "c": "import p.a", "d": only_types}.items():
        (tmp_path / "p" / f"{name}.py").write_text(text)
    files = {dotted_name(path, tmp_path): path for path in tmp_path.rglob("*.py")}
    imports = {name: runtime_imports(path, files) for name, path in files.items()}
    assert import_cycles(imports) == [("p.a", "p.b", "p.c")]


def test_only_public_packages_have_lazy_attributes() -> None:
    """Only packages with a public surface use ``lazy_attributes``."""
    surfaces: set[str] = set()
    for path in SOURCES:
        for node in parsed(path).body:
            assert not (isinstance(node, ast.FunctionDef) and node.name == "__getattr__"), path
            if isinstance(node, ast.Assign) and "__getattr__" in ast.unparse(node.targets[0]):
                surfaces.add(str(path.relative_to(ROOT / "dsconfig")))
    assert surfaces == {"__init__.py", "facts/__init__.py", "schema/__init__.py"}


def test_number_of_function_level_imports() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SOURCES
        for function in ast.walk(parsed(path))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert len(found) <= MAX_IN_FUNCTIONS, (
        "import at the top, deferred with `lazy_imports` if necessary"
    )


MAX_IN_FUNCTIONS = 36
"""Lower it whenever there are fewer."""


def package_of(path: Path) -> str:
    parts = path.relative_to(ROOT / "dsconfig").parts
    return parts[0].removesuffix(".py")


SOURCES = sorted((ROOT / "dsconfig").rglob("*.py"))


def test_package_imports_only_lower_packages() -> None:
    assert {package_of(path) for path in SOURCES} <= LEVEL.keys()
    upwards = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in SOURCES
        if package_of(path) != "__init__"
        for name in imported(path)
        if name.startswith("dsconfig.") and (package := name.split(".")[1]) in LEVEL
        if LEVEL[package] > LEVEL[package_of(path)]
    ]
    assert upwards == []


def test_engine_package_imports_only_lower_packages() -> None:
    folder = ROOT / "engine" / "dsengine"
    files = {dotted_name(path, folder.parent): path for path in folder.rglob("*.py")}
    packages = {name: name.split(".")[1] for name in files if "." in name}
    assert set(packages.values()) == set(ENGINE)
    upwards = [
        f"{name} imports {other}"
        for name, path in files.items()
        for other in runtime_imports(path, files)
        if name in packages and other in packages
        if ENGINE.index(packages[other]) > ENGINE.index(packages[name])
    ]
    assert upwards == []


def test_dsconfig_does_not_import_training_frameworks() -> None:
    found = {path: {name.split(".")[0] for name in imported(path)} & FOREIGN for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == {}


def test_engine_is_imported_only_in_functions_of_commands() -> None:
    for path in SOURCES:
        tops = {
            name.split(".")[0]
            for node in parsed(path).body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in imported_by(node)
        }
        assert "dsengine" not in tops
        if "dsengine" in {name.split(".")[0] for name in imported(path)}:
            assert package_of(path) == "commands"


def imported_by(node: ast.Import | ast.ImportFrom) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    return {node.module or ""}


def test_only_runtimes_compare_runtime_names() -> None:
    for path in SOURCES:
        if package_of(path) == "runtimes":
            continue
        for node in ast.walk(parsed(path)):
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


def test_engine_uses_only_public_names() -> None:
    import dsconfig

    for path in (ROOT / "engine" / "dsengine").rglob("*.py"):
        for name in imported(path):
            parts = name.split(".")
            if parts[0] == "dsconfig" and len(parts) > 1:
                assert parts[1] in dsconfig.__all__, f"{path.name} imports {name}"
