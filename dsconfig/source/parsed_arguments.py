"""The options that a Python script parses: their defaults, and the names that hold them.

Options are the fields of the dataclasses that its parser is given, and its ``add_argument`` calls.
What a script assigns to an option later is known only at run time.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_PARSES = (
    *("parse_args", "parse_known_args", "parse_args_and_config", "parse_args_into_dataclasses"),
    *("parse_json_file", "parse_yaml_file"),
)
"""Methods whose result holds the options."""
_TYPES = ("int", "float")
"""Types of ``add_argument`` that convert a number as the command line is read here."""


@dataclass(slots=True)
class ParsedArguments:
    """``holders``: names of objects that hold options. ``given``: values on the command line, by
    the name of the attribute. ``assigned``: options that the script overwrites."""

    holders: frozenset[str] = frozenset()
    defaults: Mapping[str, ast.expr] = field(default_factory=dict[str, ast.expr])
    given: Mapping[str, Any] = field(default_factory=dict[str, Any])
    assigned: frozenset[str] = frozenset()

    def may_hold(self, name: str) -> bool:
        """Return whether a name, which may be that of a parameter, holds the options."""
        return name in self.holders or (bool(self.holders) and name.endswith("args"))


def parsed_arguments(
    tree: ast.Module, imported: list[ast.Module], given: Mapping[str, Any], unknown: Any
) -> ParsedArguments:
    """Return the options of a script; ``imported``: modules of its project that it imports from.
    ``unknown``: the value of an option that is not known."""
    trees = (*imported, tree)
    nodes = [node for each in trees for node in ast.walk(each)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    defaults = dict[str, ast.expr]()
    for name, default in _of_classes(classes, calls):
        known = defaults.setdefault(name, default)
        if ast.unparse(known) != ast.unparse(default):
            defaults[name] = ast.Name("?")  # two classes: whose it is, is not known
    values = dict(given)
    for call in calls:
        if method(call) == "add_argument":
            _add_option(call, given, values, defaults, unknown)
        elif method(call) == "set_defaults":
            defaults.update((word.arg, word.value) for word in call.keywords if word.arg)
    found = ParsedArguments(frozenset(_holders(nodes)), defaults, values)
    found.assigned = frozenset(name for name, _ in assignments(nodes, found))
    return found


def assignments(nodes: list[ast.AST], options: ParsedArguments) -> Iterator[tuple[str, ast.expr]]:
    """Yield the options that statements overwrite, and their new values."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AugAssign):
            targets, value = [node.target], ast.Name("?")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            is_set = node.func.id == "setattr" and len(node.args) == 3
            name = node.args[1] if is_set else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value, ast.Name("?")
            continue
        else:
            continue
        for target in targets:
            owner = target.value if isinstance(target, ast.Attribute) else None
            is_held = isinstance(owner, ast.Name) and options.may_hold(owner.id)
            if is_held and isinstance(target, ast.Attribute):
                yield target.attr, value


def _holders(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the names that a parser's result is assigned to."""
    for node in nodes:
        value = node.value if isinstance(node, ast.Assign) else None
        if not isinstance(node, ast.Assign) or not isinstance(value, ast.Call):
            continue
        if method(value) in _PARSES:
            target = node.targets[0]
            listed = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
            yield from (each.id for each in listed if isinstance(each, ast.Name))


def _of_classes(
    classes: Mapping[str, ast.ClassDef], calls: list[ast.Call]
) -> Iterator[tuple[str, ast.expr]]:
    """Yield the fields of the classes that a parser is given, and of their bases, with defaults."""
    pending = [name for call in calls for name in parsed_classes(call)]
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen or name not in classes:
            continue
        seen.add(name)
        own = classes[name]
        pending += [base.id for base in own.bases if isinstance(base, ast.Name)]
        yield from fields_of(own)


def fields_of(declared: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """Yield the fields of a dataclass that have a default, and the default."""
    for each in declared.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            default = _of_field(each.value)
            if default is not None:
                yield each.target.id, default


def parsed_classes(call: ast.Call) -> list[str]:
    """Return the names of the classes whose fields a parser reads; [] for another call."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else ""
    name = function.id if isinstance(function, ast.Name) else name
    if not name.endswith("Parser"):
        return []
    listed = [
        each
        for given in call.args
        for each in (given.elts if isinstance(given, ast.Tuple | ast.List) else [given])
    ]
    found = (each.attr if isinstance(each, ast.Attribute) else each for each in listed)
    return [each.id if isinstance(each, ast.Name) else str(each) for each in found]


def _of_field(value: ast.expr | None) -> ast.expr | None:
    """Return the default of a field: the value, or ``default`` of ``field(...)``."""
    if not isinstance(value, ast.Call):
        return value
    return next((word.value for word in value.keywords if word.arg == "default"), None)


def _add_option(
    call: ast.Call,
    given: Mapping[str, Any],
    values: dict[str, Any],
    defaults: dict[str, ast.expr],
    unknown: Any,
) -> None:
    """Add an option of ``add_argument``: its default, and its value as the parser converts it."""
    texts = [str(each.value) for each in call.args if isinstance(each, ast.Constant)]
    names = [text[2:].replace("-", "_") for text in texts if text.startswith("--")]
    words = {word.arg: word.value for word in call.keywords}
    dest = words.get("dest")
    if not names:
        return
    name = str(dest.value) if isinstance(dest, ast.Constant) else names[0]
    action = words.get("action")
    kind = action.value if isinstance(action, ast.Constant) else action
    switch = {"store_true": True, "store_false": False}.get(str(kind))
    default = words.get("default")
    if default is None and switch is not None:
        default = ast.Constant(not switch)
    if default is not None:
        defaults[name] = default
    written = next((given[each] for each in names if each in given), None)
    if written is None:
        return
    convert = words.get("type")
    is_number = isinstance(convert, ast.Name) and convert.id in _TYPES
    is_text = isinstance(written, str) and (convert is None or _is_named(convert, "str"))
    is_read = kind is None and "nargs" not in words and (is_number or is_text)
    values[name] = switch if switch is not None else written if is_read else unknown


def _is_named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def method(call: ast.Call) -> str:
    """Return the name of the method that is called; "" for a function."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""
