"""All public names of the installed DeepSpeed, from its sources.

python -m tests.deepspeed_surface record      # writes tests/oracle/deepspeed_public_names.json
python -m tests.deepspeed_surface reexports   # writes engine/dsengine/deepspeed/reexports.json

``record`` parses the sources: some modules cannot be imported without kernels or other packages.
``reexports`` selects from the record what the modules of dsengine need at run time.
"""

import ast
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from dsengine.deepspeed.names import REEXPORTS
from dsengine.deepspeed.table import ANY, MODULES, canonical, module_of, places

RECORD = Path(__file__).parent / "oracle" / "deepspeed_public_names.json"
PACKAGE = "deepspeed"
ENGINE = ("runtime.engine", "DeepSpeedEngine")


@dataclass(frozen=True, slots=True)
class Surface:
    """``modules``: by module below ``deepspeed``, each public name with its origin.

    The origin is the full path below ``deepspeed`` of the definition, or of the module that the
    name refers to. ``engine``: attributes of DeepSpeedEngine that torch's Module does not have.
    """

    release: str
    modules: Mapping[str, Mapping[str, str]]
    engine: list[str]

    def names(self) -> Iterator[str]:
        """Yield the path of each module and of each name in it, below ``deepspeed``."""
        for module, names in self.modules.items():
            if module:
                yield module
            for name in names:
                yield below(module, name)


def below(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name


def installed() -> Surface:
    """Return the names of the installed release."""
    spec = find_spec(PACKAGE)
    assert spec is not None and spec.submodule_search_locations
    sources = Sources(Path(spec.submodule_search_locations[0]))
    modules = {
        module: {name: sources.origin(module, name) for name in sorted(sources.names(module))}
        for module in sorted(sources.trees)
        if not any(part.startswith("_") for part in module.split("."))
    }
    return Surface(version(PACKAGE), modules, sorted(sources.engine_attributes()))


@dataclass(frozen=True)
class Sources:
    """The parsed modules of a package, by path below it."""

    root: Path
    trees: dict[str, ast.Module] = field(default_factory=dict[str, ast.Module])
    packages: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        for path in self.root.rglob("*.py"):
            parts = path.relative_to(self.root).with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
                self.packages.add(".".join(parts))
            self.trees[".".join(parts)] = ast.parse(path.read_text("utf-8"))

    def __hash__(self) -> int:
        return id(self)

    def names(self, module: str) -> set[str]:
        """Return the public names that a module defines or takes from others of the package."""
        return {name for name in self._bound(module) if not name.startswith("_")}

    @cache  # noqa: B019 (one instance per process)
    def _bound(self, module: str) -> dict[str, str]:
        """Return each name at the top of a module: its source as ``module:name``, or ""."""
        bound: dict[str, str] = {}
        for node in _top_level(self.trees[module].body):
            if isinstance(node, ast.ImportFrom):
                imported = self._imported(module, node)
                is_star = node.names[0].name == "*"
                bound = imported | bound if is_star else bound | imported
            elif isinstance(node, ast.Import):
                bound |= {
                    alias.asname: f"{parent}:{name}"
                    for alias in node.names
                    if alias.asname and alias.name.startswith(f"{PACKAGE}.")
                    for parent, _, name in [alias.name.partition(".")[2].rpartition(".")]
                }
            else:
                bound |= dict.fromkeys(_defined(node), "")
        return bound

    def _imported(self, module: str, node: ast.ImportFrom) -> dict[str, str]:
        source = self._absolute(module, node)
        if source is None:
            return {}
        if node.names[0].name == "*":
            inner = self.trees.get(source)
            names = self.names(source) if inner is not None else set[str]()
            return {name: f"{source}:{name}" for name in names}
        return {
            alias.asname or alias.name: f"{source}:{alias.name}"
            for alias in node.names
            if below(source, alias.name) in self.trees or source in self.trees
        }

    def _absolute(self, module: str, node: ast.ImportFrom) -> str | None:
        """Return the imported module below the package, None for another package."""
        if not node.level:
            package, _, rest = (node.module or "").partition(".")
            return rest if package == PACKAGE else None
        parts = [part for part in module.split(".") if part]
        dropped = node.level - (module in self.packages)
        return ".".join([*parts[: len(parts) - dropped], *(node.module or "").split(".")]).strip(
            "."
        )

    def origin(self, module: str, name: str) -> str:
        """Return the path of the definition of ``name``, followed through imports."""
        seen: set[tuple[str, str]] = set()
        while (module, name) not in seen:
            seen.add((module, name))
            source = self._bound(module).get(name, "") if module in self.trees else ""
            if not source:
                break
            module, _, name = source.partition(":")
            if name not in self._bound(module) and below(module, name) in self.trees:
                break  # a module
        return below(module, name)

    def engine_attributes(self) -> set[str]:
        """Return the engine's methods, and the attributes that it assigns to itself."""
        from torch import nn

        module, name = ENGINE
        engine = next(
            node
            for node in self.trees[module].body
            if isinstance(node, ast.ClassDef) and node.name == name
        )
        methods = {node.name for node in engine.body if isinstance(node, ast.FunctionDef)}
        assigned = {
            node.attr
            for node in ast.walk(engine)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        }
        return {n for n in methods | assigned if not n.startswith("_")} - set(dir(nn.Module))


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module that run on import, also those in conditions."""
    for node in body:
        if isinstance(node, ast.If) and _is_skipped(node.test):
            continue
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from _top_level(node.body)
        if isinstance(node, (ast.If, ast.Try)):
            yield from _top_level(node.orelse)
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from _top_level(handler.body)


def _is_skipped(test: ast.expr) -> bool:
    return any(name in ast.unparse(test) for name in ("__main__", "TYPE_CHECKING"))


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    stored = (inner for target in targets for inner in ast.walk(target))
    return {n.id for n in stored if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def recorded() -> Surface:
    """Return the recorded names."""
    data = json.loads(RECORD.read_text("utf-8"))
    modules: dict[str, dict[str, str]] = {}
    for module, by_source in data["modules"].items():
        modules[module] = {}
        for source, names in by_source.items():
            for entry in names:
                name, _, original = entry.partition("=")
                modules[module][name] = below(source, original or name)
    return Surface(data["release"], modules, data["engine"])


def write(surface: Surface) -> None:
    """Write the record: by module and source, the names; ``a=b`` for ``import b as a``."""
    lines: list[str] = []
    for module, names in surface.modules.items():
        by_source: dict[str, list[str]] = {}
        for name, origin in names.items():
            source, _, original = origin.rpartition(".")
            entry = name if original == name else f"{name}={original}"
            by_source.setdefault(source, []).append(entry)
        lines.append(f"  {json.dumps(module)}: {json.dumps(dict(sorted(by_source.items())))}")
    head = f'{{\n "release": {json.dumps(surface.release)},\n'
    body = ' "modules": {\n' + ",\n".join(lines) + "\n },\n"
    RECORD.write_text(f'{head} "engine": {json.dumps(surface.engine)},\n{body[:-2]}\n}}\n', "utf-8")


def reexports(surface: Surface) -> str:
    """Return the names that modules of dsengine lack and DeepSpeed's take from others, as JSON."""
    needed: dict[str, dict[str, str]] = {}
    for module, names in surface.modules.items():
        implemented = module_of(module) if module else "dsengine"
        if implemented is None:
            continue
        own = _own_names(module, implemented)
        taken = {n: o for n, o in names.items() if n not in own and o != below(module, n)}
        if taken:
            needed[module] = taken
    return json.dumps(needed, indent=1) + "\n"


def _own_names(below: str, module: str) -> set[str]:
    """Return the names that a module of dsengine has by itself."""
    if canonical(below) in MODULES:
        return set(places(canonical(below))) - {ANY}
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text("utf-8"))
    imports = (n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom)))
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    lazy = set(vars(import_module(module)).get("__all__", ())) if module == "dsengine" else set()
    return imported.union(lazy, *map(_defined, tree.body))


if __name__ == "__main__":
    if sys.argv[1] == "record":
        write(installed())
    else:
        REEXPORTS.write_text(reexports(recorded()), "utf-8")
