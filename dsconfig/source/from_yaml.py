"""Read YAML files that embed or name a ds_config.

accelerate: ``deepspeed_config: {deepspeed_config_file: ds.json}``, or plugin settings from which it
generates a config. Trainers: ``deepspeed: ds.json``, or the config itself under that key. Values
are those of PyYAML, which accelerate and transformers use: ``5e8`` without a dot is a string.
"""

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

from dsconfig import os_errors
from dsconfig.source import (
    arctic_config,
    findings,
    option_configs,
    plain,
    plugin_settings,
    templates,
    yaml_numbers,
)
from dsconfig.source.document import (
    Document,
    Format,
    bounded,
    broken,
    count_distinctive,
    finish,
    too_deep,
    unreadable,
)
from dsconfig.source.file_kinds import ARGUMENTS, another_kind
from dsconfig.source.pointer import escape, is_block
from dsconfig.source.positions import LineIndex, Offsets, Spans

Node = Any
"""A PyYAML node; PyYAML has no type annotations."""
EMBEDDING_KEYS = ("deepspeed_config_file", "deepspeed", "deepspeed_config", "ds_config")
"""Keys whose value is a ds_config or its path."""
SUFFIXES = (".json", ".hjson", ".yaml", ".yml", ".py")
BUILT_IN_CONFIGS = frozenset(("zero0", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload"))
"""Names that ms-swift resolves to its built-in configs if no such file exists."""
MERGE = "tag:yaml.org,2002:merge"
FOLLOWED: ContextVar[frozenset[Path]] = ContextVar("FOLLOWED", default=frozenset())
"""Files followed so far, to detect cycles."""
MAX_NODES = 200_000
"""Maximum number of nodes after alias expansion."""


@dataclass(slots=True)
class _Positions:
    """Positions of a config's entries in the YAML text."""

    places: dict[str, Offsets] = field(default_factory=dict[str, Offsets])
    duplicates: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])


def document_from_yaml(
    text: str, name: str, read: Callable[[Path], Document], *, is_json: bool = False
) -> Document:
    """Read the ds_config that a YAML text embeds (with positions in that text) or names.

    ``read`` reads a file that the YAML names. With ``is_json`` tabs and numbers follow JSON.
    """
    make_loader: Any = yaml_numbers.Loader if is_json else yaml_numbers.SafeLoader
    readable, hidden = templates.hidden(yaml_numbers.from_json(text) if is_json else text)
    try:
        loader = make_loader(readable)
        root = loader.get_single_node()
        if root is None:
            return broken(name, text, Format.YAML, findings.empty_text())
        if _is_recursive(root, set(), set()):
            message = "a YAML alias refers to a node that contains it"
            return unreadable(
                name, text, findings.unreadable(message, "replace the alias by its value")
            )
        if _size(root, {}) > MAX_NODES:
            message = f"YAML aliases expand to more than {MAX_NODES:,} nodes"
            return unreadable(
                name, text, findings.unreadable(message, "replace the aliases by their values")
            )
        _merge(root, set())
        if hidden:
            _show(root, hidden, set())
        node = _config_node(root)
        content = _plain(loader.construct_document(root))
        if is_block(content) and arctic_config.is_arctic(content):
            node = dict(_entries(root))[arctic_config.BLOCK]  # possibly empty
        if plain.without_large_integers(content)[1]:
            return _with_large_integers(text, name, root, content)
        built = option_configs.built_config(content) if is_block(content) else None
        if built is not None:
            return _built_from_options(text, name, root, content, built)
        node_loader = make_loader(readable)
        value = _plain(node_loader.construct_document(node)) if node else content
    except yaml.YAMLError as error:
        return _invalid_yaml(text, name, error)
    except (ValueError, RecursionError) as error:
        if isinstance(error, RecursionError):
            return unreadable(name, text, too_deep())
        return unreadable(name, text, findings.unreadable(f"invalid YAML: {error}", "fix the YAML"))
    container = (
        cast("dict[str, Any]", content) if isinstance(content, dict) and node is not root else {}
    )
    if node is None:
        return _without_config(text, name, root, container)
    place = (node.start_mark.index, node.end_mark.index)
    if node is root and another_kind(value) is ARGUMENTS:
        return _unused(text, name)
    if isinstance(value, str):
        return follow(text, name, value, place, read)._replace(container=container, named_in=name)
    if arctic_config.is_arctic(container):
        return _passed_by_arctic(text, name, root, container)
    positions = _Positions()
    _walk(node, "", (-1, -1), text, positions)
    return _finished(text, name, value, positions)._replace(container=container)


def _passed_by_arctic(text: str, name: str, root: Node, content: dict[str, Any]) -> Document:
    """Return the config that ArcticTraining makes of its YAML, each value where it is written."""
    every, positions = _Positions(), _Positions()
    _walk(root, "", (-1, -1), text, every)
    _walk(dict(_entries(root))[arctic_config.BLOCK], "", (-1, -1), text, positions)
    for pointer, beside in arctic_config.pointers_beside(content).items():
        if pointer not in positions.places or pointer in arctic_config.OVERWRITTEN:
            positions.places[pointer] = every.places[beside]
    value = arctic_config.passed_config(content)
    return _finished(text, name, value, positions)._replace(container=content)


def _built_from_options(
    text: str,
    name: str,
    root: Node,
    content: dict[str, Any],
    built: option_configs.BuiltConfig,
) -> Document:
    """Return the config that a program builds, each value at the position of its option."""
    every = _Positions()
    _walk(root, "", (-1, -1), text, every)
    places = {to: every.places[at] for to, at in built.pointers.items() if at in every.places}
    positions = _Positions({"": every.places[""], **places}, every.duplicates)
    return _finished(text, name, built.config, positions)._replace(container=content)


def _with_large_integers(text: str, name: str, root: Node, content: Any) -> Document:
    """Return the document of a YAML with integers, of the config or not, that no float can hold."""
    positions = _Positions()
    _walk(root, "", (-1, -1), text, positions)
    spans = Spans(text, positions.places)
    return bounded(Document(name, content, Format.YAML, text, spans))._replace(
        value={}, large_integers=()
    )


def _without_config(text: str, name: str, root: Node, container: dict[str, Any]) -> Document:
    """Return the config that accelerate generates for this YAML, or why there is none."""
    if plugin_settings.is_launched_with(container):
        return _generated(text, name, root, container)
    if plugin_settings.is_accelerate_config(container, ()):
        return _unused(text, name, "deepspeed_config_file")._replace(container=container)
    entries = dict(_entries(root))
    is_disabled = any(_is_disabled(entries.get(key)) for key in EMBEDDING_KEYS)
    if is_disabled or not ARGUMENTS.marks.isdisjoint(entries):
        return _unused(text, name)
    message = "this YAML neither contains nor names a ds_config"
    help = "set `deepspeed` to the config or its path"
    return broken(name, text, Format.YAML, findings.no_config_inside(message, help))


def _generated(text: str, name: str, root: Node, launch: dict[str, Any]) -> Document:
    """Return the config that accelerate generates, each value at the position of its setting."""
    positions = _Positions()
    _walk(root, "", (-1, -1), text, positions)
    places = positions.places
    places[""] = places.get("/deepspeed_config", places[""])
    for setting, path in plugin_settings.PATH_OF_SETTING.items():
        if f"/deepspeed_config/{setting}" in places:
            places[path.pointer] = places[f"/deepspeed_config/{setting}"]
    value = plugin_settings.config_of_launch(launch)
    if "/mixed_precision" in places:
        places.update({f"/{block}": places["/mixed_precision"] for block in ("bf16", "fp16")})
    return _finished(text, name, value, positions)._replace(container=launch, is_generated=True)


def _finished(text: str, name: str, value: Any, positions: _Positions) -> Document:
    spans = Spans(text, positions.places)
    repeated = tuple(
        findings.duplicate_key(pointer, spans.lines.range(start, end), in_file=False)
        for pointer, start, end in positions.duplicates
    )
    strings = templates.strings(value)
    placeholders = frozenset(
        pointer for pointer, found in strings if templates.is_placeholder(found, is_bare=False)
    )
    return finish(Document(name, value, Format.YAML, text, spans, repeated, placeholders))


def _config_node(root: Node) -> Node:
    """Return the node of the config or of its path; the root if it is a config itself."""
    waiting: list[Node] = [root]
    searched: set[int] = set()
    for node in waiting:
        entries = dict(_entries(node))
        plugin = entries.get("deepspeed_config")
        block = dict(_entries(plugin)) if plugin is not None else {}
        is_named = plugin is not None and _is_path(plugin, "deepspeed_config")
        if plugin_settings.is_accelerate_config(entries, None if is_named else block):
            named = block.get("deepspeed_config_file")
            return named if named and _is_path(named, "deepspeed_config_file") else None
        if node is root and any(_is_disabled(entries.get(key)) for key in EMBEDDING_KEYS):
            return None
        # ``{name: deepspeed, config_file: ds.json}`` selects a backend.
        name = entries.get("name")
        is_chosen = name is not None and name.value == "deepspeed"
        for key in (*EMBEDDING_KEYS, "config_file") if is_chosen else EMBEDDING_KEYS:
            child = entries.get(key)
            if child is None:
                continue
            if child.id == "mapping":
                searched.add(id(child))
                inner = _config_node(child)
                if inner is not None:
                    return inner
            elif _is_path(child, key) and (node is root or _looks_like_path(child)):
                return child
        least = 1 if node is root else 2
        # ``bf16: true`` is a trainer setting: in a ds_config bf16 is a block.
        names = (
            key
            for key, child in entries.items()
            if key not in ("bf16", "fp16") or child.id == "mapping"
        )
        if count_distinctive(names) >= least and plugin_settings.OWN.isdisjoint(entries):
            return node
        waiting += (
            child
            for child in entries.values()
            if child.id == "mapping" and id(child) not in searched
        )
        if len(waiting) > MAX_NODES:
            break
    return None


def _is_path(node: Node, key: str) -> bool:
    if node.id != "scalar" or (key == "deepspeed_config_file" and node.value == "none"):
        return False  # accelerate writes "none" for no file
    return not _is_disabled(node)


def _looks_like_path(node: Node) -> bool:
    """Return whether a string is a file name at any nesting level."""
    target = str(node.value)
    return target.endswith(SUFFIXES) or bool(templates.PLACEHOLDER.search(target))


def _is_disabled(node: Node | None) -> bool:
    """Return whether a key is present and disables DeepSpeed."""
    words = ("", "null", "~", "false")
    return node is not None and node.id == "scalar" and str(node.value).strip().lower() in words


def _entries(node: Node) -> Iterator[tuple[str, Node]]:
    if node.id == "mapping":
        for key, value in node.value:
            if key.id == "scalar":
                yield str(key.value), value


def _merge(node: Node, done: set[int]) -> None:
    """Expand ``<<`` in every mapping; its own entries take precedence."""
    if id(node) in done:
        return
    done.add(id(node))
    if node.id == "sequence":
        for child in node.value:
            _merge(child, done)
    if node.id != "mapping":
        return
    for _, child in node.value:
        _merge(child, done)
    merged = [child for key, child in node.value if key.tag == MERGE]
    node.value = [(key, child) for key, child in node.value if key.tag != MERGE]
    sources = [source for child in merged for source in _sources(child)]
    for source in sources:
        own = {key.value for key, _ in node.value if key.id == "scalar"}
        node.value += [pair for pair in source.value if pair[0].value not in own]


def _show(node: Node, hidden: list[str], done: set[int]) -> None:
    """Write the placeholders back into every scalar; one with a placeholder is a string."""
    if id(node) in done:
        return
    done.add(id(node))
    if node.id == "scalar":
        shown = templates.shown(node.value, hidden)
        if shown != node.value:
            node.value, node.tag = shown, "tag:yaml.org,2002:str"
    for child in _children(node) if node.id != "scalar" else ():
        _show(child, hidden, done)


def _sources(node: Node) -> list[Node]:
    """Return the mappings merged by a ``<<``; the first one takes precedence."""
    listed = node.value if node.id == "sequence" else [node]
    if any(source.id != "mapping" for source in listed):
        raise ValueError("<< requires a mapping or a list of mappings")
    return listed


def is_bounded(root: Node) -> bool:
    """Return whether the aliases below a node end, and expand to at most ``MAX_NODES``."""
    return not _is_recursive(root, set(), set()) and _size(root, {}) <= MAX_NODES


def _is_recursive(node: Node, above: set[int], done: set[int]) -> bool:
    """Return whether an alias refers to a node that contains it."""
    if id(node) in above:
        return True
    if id(node) in done:
        return False
    done.add(id(node))
    return any(_is_recursive(child, above | {id(node)}, done) for child in _children(node))


def _children(node: Node) -> list[Node]:
    """Return the items of a sequence, or the keys and values of a mapping."""
    if node.id == "mapping":
        return [child for pair in node.value for child in pair]
    return node.value if node.id == "sequence" else []


def _size(node: Node, known: dict[int, int]) -> int:
    """Return the number of nodes of a subtree, counting each use of an alias."""
    if id(node) not in known:
        known[id(node)] = 1 + sum(_size(child, known) for child in _children(node))
    return known[id(node)]


def _walk(node: Node, pointer: str, key: tuple[int, int], text: str, positions: _Positions) -> None:
    start, end = node.start_mark.index, node.end_mark.index
    end = start + len(text[start:end].rstrip())
    positions.places[pointer] = (*key, start, end)
    if node.id == "mapping":
        seen: set[str] = set()
        for name, value in node.value:
            if name.id != "scalar":
                continue
            here = f"{pointer}/{escape(str(name.value))}"
            place = (name.start_mark.index, name.end_mark.index)
            if here in seen:
                positions.duplicates.append((here, *place))
            seen.add(here)
            _walk(value, here, place, text, positions)
    elif node.id == "sequence":
        for index, child in enumerate(node.value):
            _walk(child, f"{pointer}/{index}", (-1, -1), text, positions)


def _plain(value: Any) -> Any:
    """Convert to JSON types: keys, dates and binary values become strings."""
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value).items()
        return {key if isinstance(key, str) else str(key): _plain(item) for key, item in entries}
    if isinstance(value, (list, tuple, set)):
        return [_plain(item) for item in cast("list[Any]", value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def follow(
    text: str, name: str, target: str, place: tuple[int, int], read: Callable[[Path], Document]
) -> Document:
    """Read the file that a YAML or a script names, relative to the working directory or to it.

    A path with directories is also looked up in the parents of its directory.
    """
    folders = Path(name).absolute().parent.parents if len(Path(target).parts) > 1 else ()
    above = (_from_here(folder / target) for folder in folders)
    for path in (Path(target), Path(name).parent / target, *above):
        if os_errors.is_file(path):
            return _read_once(text, name, path, read)
    why = None
    if target in BUILT_IN_CONFIGS:
        why = f'"{target}" is a built-in config of ms-swift'
    elif templates.PLACEHOLDER.search(target):
        why = f"another program fills in the path {target}"
    if why is not None:
        return unreadable(name, text, findings.no_config_named(why), Format.YAML)
    spans = Spans(text, {"": (-1, -1, *place)})
    missing = findings.unreadable(
        f"config file {target!r} not found",
        "write the path relative to the working directory or to this file",
    )
    missing = missing._replace(range=spans[""].value)
    return unreadable(name, text, missing, Format.YAML)._replace(spans=spans)


def _from_here(path: Path) -> Path:
    """Return a path relative to the working directory if it is inside."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _read_once(text: str, name: str, path: Path, read: Callable[[Path], Document]) -> Document:
    """Read a file, unless it has been followed already."""
    target, followed = path.resolve(), FOLLOWED.get()
    if target in followed:
        why = f"'{path}' refers back to this file"
        cycle = findings.unreadable(why, "specify a ds_config")
        return unreadable(name, text, cycle, Format.YAML)
    token = FOLLOWED.set(followed | {target})
    try:
        return read(path)
    finally:
        FOLLOWED.reset(token)


def _unused(text: str, name: str, key: str = "deepspeed") -> Document:
    """Return the document of a trainer or accelerate file without DeepSpeed."""
    return unreadable(name, text, findings.no_config_named(key=key), Format.YAML)


def _invalid_yaml(text: str, name: str, error: Any) -> Document:
    """Return the document of a text that PyYAML rejects."""
    mark = getattr(error, "problem_mark", None)
    at = len(text) if mark is None else min(mark.index, len(text))
    message = f"invalid YAML: {getattr(error, 'problem', None) or error}"
    problem = findings.syntax_error(message, "", LineIndex(text).range(at, at + 1))
    return broken(name, text, Format.YAML, problem)
