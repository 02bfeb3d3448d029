"""Settings in a Python file, read without executing it: its names, and the calls that configure.

A config that is a module (xtuner) is the value of its names; a script has settings in calls such as
``SFTConfig(...)``, ``LoraConfig(...)`` and ``AutoModelForCausalLM.from_pretrained(...)``.
"""

import ast
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dsconfig.source.pointer import is_block, is_list

MOST_NODES = 20_000
"""Nodes of a file that are read."""
DEEPEST = 40
LARGEST, MOST_POWER = 2**63, 10_000
"""Limits on a converted number, and on a base (a thousand times an exponent)."""
OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Pow: lambda left, right: left**right,
}
UNKNOWN: Any = object()
"""A value that is known only at run time."""


class Setting(NamedTuple):
    """A value and its line."""

    value: Any
    line: int


@dataclass(slots=True)
class _Module:
    """The names of a module; one that is assigned twice has its last value.

    ``is_script``: other names, and calls, are known only at run time.
    """

    names: dict[str, ast.expr] = field(default_factory=dict[str, ast.expr])
    is_script: bool = False
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
            case ast.Attribute() if self.is_script and _parts(node)[0] != "torch":
                return UNKNOWN
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
                if name == "int" and len(node.args) == 1:
                    number = self.value(node.args[0], depth + 1)
                    is_number = isinstance(number, int | float) and abs(number) < LARGEST
                    return int(number) if is_number else UNKNOWN
                if self.is_script and name != "dict":
                    return UNKNOWN
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
            return UNKNOWN if self.is_script else name  # imported
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
        is_power = isinstance(node.op, ast.Pow)
        is_large = numbers and is_power and (abs(left) > MOST_POWER or right > MOST_POWER / 1000)
        if apply is None or not numbers or is_large:
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
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            before = module.names.get(node.target.id, node.target)
            module.names[node.target.id] = ast.BinOp(
                before, node.op, node.value, lineno=node.lineno
            )
    return module


def _tree(text: str) -> ast.Module | None:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree if sum(1 for _ in ast.walk(tree)) <= MOST_NODES else None


def names_in(text: str) -> dict[str, Setting]:
    """Return the names that a module assigns, those of dicts with dots; {} for invalid Python.

    Of a list of dicts, the last one counts. A dict that another name contains is part of that one.
    """
    tree = _tree(text)
    if tree is None:
        return {}
    module = _module(tree)
    found: dict[str, Setting] = {}
    parts = {
        inner.id
        for node in module.names.values()
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name)
    }
    for name, node in module.names.items():
        value = module.value(node)
        if name in parts and is_block(value):
            continue
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


def trainer_settings(text: str, classes: Container[str]) -> tuple[str, dict[str, Setting]] | None:
    """Return the class of the Trainer's arguments that a script configures and the settings of its
    calls under the names of the class's fields; None without one.

    ``classes``: names of such classes. A setting in a branch that may not run is ``UNKNOWN``.
    """
    tree = _tree(text)
    if tree is None:
        return None
    module = _Module(_constants(tree), is_script=True)
    named = ""
    found: dict[str, Setting] = {}
    for node, is_certain in _calls(tree.body, module, is_certain=True):
        *owner, name = _parts(node.func)
        configured = _parsed(node) if name.endswith("Parser") else [name]
        named = named or next((each for each in configured if each in classes), "")
        for key, value in _settings_of(node, ".".join(owner), name, classes):
            known = module.value(value) if isinstance(value, ast.expr) else value
            found.setdefault(key, Setting(known if is_certain else UNKNOWN, node.lineno))
    return (named, found) if named else None


def _parsed(call: ast.Call) -> list[str]:
    """Return the names of the classes whose fields a parser reads from the command line."""
    listed = [
        each
        for given in call.args
        for each in (given.elts if isinstance(given, ast.Tuple | ast.List) else [given])
    ]
    return [_parts(each)[-1] for each in listed]


def arguments_in(tree: ast.Module) -> dict[str, Any]:
    """Return the known arguments of the Trainer that a script configures; {} without them.

    The class has any name: only the Trainer's arguments have an ``output_dir``.
    """
    for node in ast.walk(tree):
        words = node.keywords if isinstance(node, ast.Call) else []
        if any(word.arg == "output_dir" for word in words):
            module = _Module(_constants(tree), is_script=True)
            values = {word.arg: module.value(word.value) for word in words if word.arg}
            return {name: value for name, value in values.items() if value is not UNKNOWN}
    return {}


_OF_CALLS: Mapping[str, Mapping[str, str]] = {
    "LoraConfig": {
        "r": "lora_r",
        "lora_alpha": "lora_alpha",
        "lora_dropout": "lora_dropout",
        "target_modules": "lora_target_modules",
    },
    "BitsAndBytesConfig": {"load_in_4bit": "load_in_4bit", "load_in_8bit": "load_in_8bit"},
    "from_pretrained": {
        "pretrained_model_name_or_path": "model_name_or_path",
        "model_name": "model_name_or_path",
        "attn_implementation": "attn_implementation",
        "load_in_4bit": "load_in_4bit",
        "load_in_8bit": "load_in_8bit",
        "max_seq_length": "max_seq_length",
    },
    "Trainer": {
        "max_seq_length": "max_seq_length",
        "max_length": "max_length",
        "packing": "packing",
        "max_prompt_length": "max_prompt_length",
    },
}
"""Settings of calls, and the fields that have the same meaning."""


def _settings_of(
    node: ast.Call, owner: str, name: str, classes: Container[str]
) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a call: field, and the expression or value."""
    keywords = {word.arg: word.value for word in node.keywords if word.arg is not None}
    if name in classes:
        yield from keywords.items()
        return
    is_adapter = name == "LoraConfig" or (name == "get_peft_model" and "r" in keywords)
    is_model = name == "from_pretrained" and "Model" in owner
    if is_adapter:
        yield "use_peft", True
    if is_model and node.args:
        yield "model_name_or_path", node.args[0]
    if name.endswith("Trainer") and isinstance(keywords.get("model"), ast.Constant | ast.Name):
        model = keywords["model"]
        if isinstance(model, ast.Constant):
            yield "model_name_or_path", model
    if name in ("gradient_checkpointing_enable", "prepare_model_for_kbit_training"):
        yield "gradient_checkpointing", True
    if name == "from_pretrained" and not is_model:
        return
    kind = "LoraConfig" if is_adapter else "Trainer" if name.endswith("Trainer") else name
    for keyword, field_name in _OF_CALLS.get(kind, {}).items():
        if keyword in keywords:
            yield field_name, keywords[keyword]


def _calls(
    body: Iterable[ast.AST], module: _Module, *, is_certain: bool
) -> Iterator[tuple[ast.Call, bool]]:
    """Yield the calls of statements, and whether no unknown condition decides about each."""
    for node in body:
        if isinstance(node, ast.If) and not _is_of_main(node.test):
            yield from _calls([node.test], module, is_certain=is_certain)
            holds = module.value(node.test)
            for branch, expected in ((node.body, True), (node.orelse, False)):
                if holds is UNKNOWN or bool(holds) is expected:
                    certain = is_certain and holds is not UNKNOWN
                    yield from _calls(branch, module, is_certain=certain)
            continue
        yield from _calls(ast.iter_child_nodes(node), module, is_certain=is_certain)
        if isinstance(node, ast.Call):
            yield node, is_certain


def _is_of_main(test: ast.expr) -> bool:
    left = test.left if isinstance(test, ast.Compare) else None
    return isinstance(left, ast.Name) and left.id == "__name__"


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the names that are assigned once, and are no parameter or loop variable."""
    found: dict[str, ast.expr] = {}
    other: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                other |= {target.id} & found.keys()
                found[target.id] = node.value
        elif isinstance(node, ast.arg):
            other.add(node.arg)
        elif isinstance(node, ast.For | ast.AugAssign) and isinstance(node.target, ast.Name):
            other.add(node.target.id)
    return {name: value for name, value in found.items() if name not in other}
