"""Settings in a Python file, read without executing it: its names, and the calls that configure.

A config that is a module (xtuner) is the value of its names; a script has settings in calls such as
``SFTConfig(...)``, ``LoraConfig(...)`` and ``AutoModelForCausalLM.from_pretrained(...)``.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dsconfig.source.parsed_arguments import (
    ParsedArguments,
    assignments,
    fields_of,
    parsed_arguments,
    parsed_classes,
)
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
COMPARES: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: lambda left, right: left == right,
    ast.NotEq: lambda left, right: left != right,
    ast.Is: lambda left, right: left is right,
    ast.IsNot: lambda left, right: left is not right,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
    ast.Gt: lambda left, right: left > right,
    ast.Lt: lambda left, right: left < right,
}
UNKNOWN: Any = object()
"""A value that is known only at run time."""


class Setting(NamedTuple):
    """A value, its line, and its file if it is not the script's."""

    value: Any
    line: int
    file: str = ""


class Settings(NamedTuple):
    """The settings of a script. ``named``: the class of arguments that it configures; those in
    ``overwritten`` replace options of its command."""

    named: str
    found: dict[str, Setting]
    overwritten: dict[str, Setting]


@dataclass(slots=True)
class _Module:
    """The names of a module; one that is assigned twice has its last value.

    ``is_script``: other names, and calls, are known only at run time.
    """

    names: dict[str, ast.expr] = field(default_factory=dict[str, ast.expr])
    is_script: bool = False
    options: ParsedArguments = field(default_factory=ParsedArguments)
    pending: set[str] = field(default_factory=set[str])
    known: dict[str, Any] = field(default_factory=dict[str, Any])

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
                return self._option(_parts(node), depth)
            case ast.IfExp():
                holds = self.truth(node.test, depth + 1)
                branch = node.body if holds else node.orelse
                return UNKNOWN if holds is UNKNOWN else self.value(branch, depth + 1)
            case ast.UnaryOp(op=ast.Not()):
                inner = self.truth(node.operand, depth + 1)
                return UNKNOWN if inner is UNKNOWN else not inner
            case ast.BoolOp():
                return self._either(node, depth)
            case ast.Compare(ops=[operator], comparators=[other]):
                compare = COMPARES.get(type(operator))
                left, right = self.value(node.left, depth + 1), self.value(other, depth + 1)
                if compare is None or _is_open(left) or _is_open(right):
                    return UNKNOWN
                try:
                    return compare(left, right)
                except TypeError:
                    return UNKNOWN
            case ast.Attribute():
                return ".".join(_parts(node)[-2:]) if _parts(node)[0] != "torch" else node.attr
            case ast.List() | ast.Tuple() | ast.Set():
                return [self.value(each, depth + 1) for each in node.elts]
            case ast.Dict() if self.is_script and not all(
                isinstance(key, ast.Constant) for key in node.keys
            ):
                return UNKNOWN
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

    def truth(self, node: ast.expr, depth: int = 0) -> Any:
        """Return whether an expression is true, or ``UNKNOWN``."""
        value = self.value(node, depth)
        return UNKNOWN if _is_open(value) else bool(value)

    def _either(self, node: ast.BoolOp, depth: int) -> Any:
        """Return what ``and`` and ``or`` decide."""
        is_or, value = isinstance(node.op, ast.Or), None
        for each in node.values:
            value = self.value(each, depth + 1)
            if _is_open(value):
                return UNKNOWN
            if bool(value) is is_or:
                return value
        return value

    def _option(self, parts: list[str], depth: int) -> Any:
        """Return the value of an option that the script parses."""
        *owner, name = parts
        options = self.options
        if len(owner) != 1 or not options.may_hold(owner[0]) or name in options.assigned:
            return UNKNOWN
        if name in self.options.given:
            return self.options.given[name]
        default = self.options.defaults.get(name)
        return UNKNOWN if default is None else self.value(default, depth + 1)

    def _named(self, name: str, depth: int) -> Any:
        node = self.names.get(name)
        if node is None:
            return UNKNOWN if self.is_script else name  # imported
        if name in self.pending:
            return UNKNOWN
        if name not in self.known:
            self.pending.add(name)
            try:
                self.known[name] = self.value(node, depth + 1)
            finally:
                self.pending.discard(name)
        return self.known[name]

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


def _is_open(value: Any) -> bool:
    """Return whether a value, or one in it, is known only at run time."""
    if is_block(value):
        return any(map(_is_open, value.values()))
    return any(map(_is_open, value)) if is_list(value) else value is UNKNOWN


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


def trainer_settings(
    text: str,
    classes: Container[str],
    given: Mapping[str, Any] | None = None,
    imported: Mapping[str, str] | None = None,
) -> Settings | None:
    """Return the class of the Trainer's arguments that a script configures and the settings of its
    calls under the names of the class's fields; None without one.

    ``classes``: names of such classes. ``given``: the options on its command line. ``imported``:
    texts of modules of its project, by path. A setting in a branch that may not run is ``UNKNOWN``.
    """
    try:
        return _settings_in(text, classes, given or {}, imported or {})
    except RecursionError:  # an expression of a thousand terms
        return None


def _settings_in(
    text: str, classes: Container[str], given: Mapping[str, Any], imported: Mapping[str, str]
) -> Settings | None:
    tree = _tree(text)
    if tree is None:
        return None
    read = {file: _tree(other) for file, other in imported.items()}
    others = {file: other for file, other in read.items() if other is not None}
    options = parsed_arguments(tree, list(others.values()), given, UNKNOWN)
    bases = _subclasses((tree, *others.values()))
    named = ""
    found: dict[str, Setting] = {}
    for file, body in (("", tree.body), *_functions(tree, others)):
        own = others[file] if file else tree
        module = _Module(_constants(own), is_script=True, options=options)
        for node, is_certain in _calls(body, module, is_certain=True):
            *owner, name = _parts(node.func)
            configured = parsed_classes(node) or [name]
            known = (_known_class(each, bases, classes) for each in configured)
            named = named or next(filter(None, known), "")
            for key, value in _settings_of(node, ".".join(owner), name, classes):
                decided = module.value(value) if isinstance(value, ast.expr) else value
                setting = Setting(decided if is_certain else UNKNOWN, node.lineno, file)
                found.setdefault(key, setting)
    module = _Module(_constants(tree), is_script=True, options=options)
    for name, default in _redefined(tree, bases, classes):
        found.setdefault(name, Setting(module.value(default), default.lineno))
    grouped = _line_of_grouping(tree)
    if grouped is not None:
        found.setdefault("packing", Setting(True, grouped))
    adapted = found.pop(_ADAPTED, None)
    if adapted is not None:  # by an adapter that is built elsewhere
        found.setdefault("use_peft", adapted._replace(value=UNKNOWN))
    return Settings(named, found, _overwritten(tree, options)) if named else None


def _redefined(
    tree: ast.Module, bases: Mapping[str, str], classes: Container[str]
) -> Iterator[tuple[str, ast.expr]]:
    """Yield the Trainer's arguments whose defaults a class of the script replaces, such as
    ``bf16: bool = True``, if its parser is given the class."""
    nodes = list(ast.walk(tree))
    parsed = {name for node in nodes if isinstance(node, ast.Call) for name in parsed_classes(node)}
    for node in nodes:
        is_parsed = isinstance(node, ast.ClassDef) and node.name in parsed & bases.keys()
        if not isinstance(node, ast.ClassDef) or not is_parsed:
            continue
        if _known_class(bases[node.name], bases, classes):
            for name, default in fields_of(node):
                if name in _REDEFINED:
                    yield name, default


def _overwritten(tree: ast.Module, options: ParsedArguments) -> dict[str, Setting]:
    """Return the options that a script overwrites: ``args.max_seq_length = config.block_size``; one
    that a branch assigns, or several statements, is ``UNKNOWN``."""
    module = _Module(_constants(tree), is_script=True, options=options)
    found: dict[str, Setting] = {}
    count = Counter[str]()
    for node in ast.walk(tree):
        for name, _ in assignments([node], options):
            count[name] += 1
            found[name] = Setting(UNKNOWN, getattr(node, "lineno", 1))
    for name, value in assignments(list(_certain(tree.body)), options):
        if count[name] == 1:
            found[name] = found[name]._replace(value=module.value(value))
    return {name: setting for name, setting in found.items() if name in _ASSIGNED}


def _certain(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the statements that run in any case, those of functions included."""
    for node in body:
        if isinstance(node, ast.FunctionDef) or (
            isinstance(node, ast.If) and _is_of_main(node.test)
        ):
            yield from _certain(node.body)
        else:
            yield node


_ASSIGNED = frozenset(
    (
        *("gradient_checkpointing", "max_length", "max_seq_length", "model_max_length", "packing"),
        *("gradient_accumulation_steps", "per_device_train_batch_size"),
    )
)
"""Options that scripts overwrite, and that decide facts."""
_REDEFINED = _ASSIGNED | {"bf16", "fp16", "lr_scheduler_type", "optim"}


def _subclasses(trees: Iterable[ast.Module]) -> dict[str, str]:
    """Return the base of each class that a script and its modules define, or the name of a class
    that is imported under another one."""
    found: dict[str, str] = {}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.ClassDef) and node.bases:
            found[node.name] = _parts(node.bases[0])[-1]
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname: alias.name for alias in node.names if alias.asname}
    return found


def _known_class(name: str, bases: Mapping[str, str], classes: Container[str]) -> str:
    """Return the first of a class and its bases that is in ``classes``; "" without one."""
    seen: set[str] = set()
    while name not in classes and name in bases and name not in seen:
        seen.add(name)
        name = bases[name]
    return name if name in classes else ""


def _functions(
    tree: ast.Module, others: Mapping[str, ast.Module]
) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Yield the functions of other modules that a script imports by name, with their file."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    names = {alias.name for node in imports for alias in node.names}
    for file, other in others.items():
        for node in other.body:
            if isinstance(node, ast.FunctionDef) and node.name in names:
                yield file, [node]


_ADAPTED = "peft_config"


def _line_of_grouping(tree: ast.Module) -> int | None:
    """Return the line at which a script maps ``group_texts``, which joins texts and cuts them into
    blocks, as the examples of transformers do."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _parts(node.func)[-1] == "map":
            named = next(iter(node.args), None)
            if isinstance(named, ast.Name) and named.id == "group_texts":
                return node.lineno
    return None


def file_of_arguments(text: str, given: Mapping[str, Any]) -> Any:
    """Return the file whose fields a script parses instead of its options; None without one,
    ``UNKNOWN`` if only the run knows it."""
    tree = _tree(text)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree else []
    named = [
        node for node in calls if _parts(node.func)[-1] in ("parse_json_file", "parse_yaml_file")
    ]
    by_options = any(_parts(node.func)[-1] == "parse_args_into_dataclasses" for node in calls)
    if tree is None or not named or by_options:
        return None
    options = parsed_arguments(tree, [], given, UNKNOWN)
    module = _Module(_constants(tree), is_script=True, options=options)
    words = [*named[0].args, *(word.value for word in named[0].keywords)]
    return module.value(words[0]) if words else UNKNOWN


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


_MODEL = re.compile(r"Model|For[A-Z]")
"""Classes of models: ``AutoModelForCausalLM``, ``Qwen2VLForConditionalGeneration``."""


def _settings_of(
    node: ast.Call, owner: str, name: str, classes: Container[str]
) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a call: field, and the expression or value."""
    keywords = {word.arg: word.value for word in node.keywords if word.arg is not None}
    if name in classes:
        yield from keywords.items()
        return
    if name.endswith("Trainer") and not _is_default_adapter(keywords.get("peft_config")):
        yield _ADAPTED, True
    is_adapter = name == "LoraConfig" or (name == "get_peft_model" and "r" in keywords)
    is_model = name == "from_pretrained" and _MODEL.search(owner) is not None
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


def _is_default_adapter(config: ast.expr | None) -> bool:
    """Return whether TRL's own arguments decide the adapter that a Trainer is passed."""
    if config is None or isinstance(config, ast.Constant):
        return True
    return isinstance(config, ast.Call) and _parts(config.func)[-1] == "get_peft_config"


def _calls(
    body: Iterable[ast.AST], module: _Module, *, is_certain: bool
) -> Iterator[tuple[ast.Call, bool]]:
    """Yield the calls of statements, and whether no unknown condition decides about each."""
    for node in body:
        if isinstance(node, ast.IfExp) or (isinstance(node, ast.If) and not _is_of_main(node.test)):
            yield from _calls([node.test], module, is_certain=is_certain)
            holds = module.truth(node.test)
            for branch, expected in ((node.body, True), (node.orelse, False)):
                if holds is UNKNOWN or holds is expected:
                    certain = is_certain and holds is not UNKNOWN
                    inner = [branch] if isinstance(branch, ast.expr) else branch
                    yield from _calls(inner, module, is_certain=certain)
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
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    fields = {id(each) for node in classes for each in node.body}
    for node in ast.walk(tree):
        if id(node) in fields:
            continue
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
