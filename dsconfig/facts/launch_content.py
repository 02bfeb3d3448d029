"""The keys of a launch file, the program that reads them, and what starts it.

A launch file is a trainer's YAML or JSON, a Python file with the settings of a program, or a shell
script with a training command, which leads to other files. Nothing in it is executed.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from dsconfig import hostfile, os_errors
from dsconfig.facts import dialects
from dsconfig.facts.dialects import Dialect
from dsconfig.facts.launch_facts import DERIVED, ENVIRONMENT, FILE, Origin, Sourced
from dsconfig.facts.trainer_fields import TAKEN
from dsconfig.source import from_yaml, python_settings, shell_script, yaml_numbers
from dsconfig.source.document import LAUNCH
from dsconfig.source.file_kinds import SCRIPTS
from dsconfig.source.pointer import MAX_DEPTH, is_block
from dsconfig.source.python_settings import UNKNOWN
from dsconfig.source.shell_script import Script

LARGEST = 8 * 2**20
"""Bytes of a launch file that is read."""
_VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*\}?$|\$\{\{|\{\{.*\}\}$")
"""A value that is a variable of a shell or template."""


class Content(NamedTuple):
    """Keys of a file or command, and what launches it."""

    dialect: Dialect
    variant: str
    keys: dict[str, Sourced]
    environment: dict[str, Sourced]
    files: list[str]
    script: Script | None = None
    settings: Mapping[str, Any] = MappingProxyType({})
    """Settings of the accelerate YAML that the launcher reads."""
    is_complete: bool = True
    """Whether the file of arguments that a command names could be read."""


def content_of(path: Path, releases: Mapping[str, str]) -> Content | None:
    """Return what a launch file contains; None for a file of another kind.

    ``releases``: releases of programs that are given, by package.
    """
    text = _text(path)
    if text is None:
        return None
    read = _of_script if path.suffix in SCRIPTS else _of_settings
    return read(path, text, releases)


def _text(path: Path) -> str | None:
    try:
        if not os_errors.is_file(path) or path.stat().st_size > LARGEST:
            return None
        return path.read_text("utf-8-sig")
    except (OSError, ValueError):
        return None


# --- keys


def _of_settings(path: Path, text: str, releases: Mapping[str, str]) -> Content | None:
    """Return the keys of a YAML or JSON with the settings of a program."""
    keys = _keys_of(path, text)
    if keys is None:
        return None
    found = dialects.of_keys(keys.keys(), releases)
    if found is None and path.suffix == ".py":
        configured = _of_calls(path, text)
        if configured is None:
            return None
        keys = {**configured.settings, **configured.overwritten}
        return _content(configured.dialect, configured.variant, keys, [str(path)])
    if found is None:
        return None
    return _content(found, found.variant_of("", keys), keys, [str(path)])


class Configured(NamedTuple):
    """What a Python script configures; ``overwritten`` replaces options of its command."""

    dialect: Dialect
    variant: str
    settings: dict[str, Sourced]
    overwritten: dict[str, Sourced]


def _of_calls(path: Path, text: str, given: Mapping[str, Any] | None = None) -> Configured | None:
    """Return the program, its variant and the settings of a Python script with a Trainer;
    ``given``: its options."""
    classes = dialects.classes()
    read = python_settings.trainer_settings(text, classes, given, dict(_imported(path, text)))
    if read is None:
        return None
    found, overwritten = _sourced(read.found, path), _sourced(read.overwritten, path)
    return Configured(*classes[read.named], found, overwritten)


_IMPORT = re.compile(r"^[ \t]*from[ \t]+(\.*)([\w.]+)[ \t]+import\b", re.MULTILINE)
MOST_IMPORTED = 20


def _imported(path: Path, text: str) -> Iterator[tuple[str, str]]:
    """Yield paths and texts of the modules of its project that a script imports names from."""
    names = dict.fromkeys(found.groups() for found in _IMPORT.finditer(text))
    for dots, name in list(names)[:MOST_IMPORTED]:
        package, _, last = name.rpartition(".")
        inner = found_file(path, name.replace(".", "/") + ".py")
        if inner is None and (dots or _is_folder(path, package.partition(".")[0])):
            inner = found_file(path, f"{last}.py")
        module = None if inner is None or inner == path else _text(inner)
        if module is not None:
            yield str(inner), module


def _is_folder(path: Path, name: str) -> bool:
    """Return whether a package is a folder of the project of a script."""
    return bool(name) and any((each / name).is_dir() for each in (path.parent, path.parent.parent))


def _sourced(settings: Mapping[str, python_settings.Setting], path: Path) -> dict[str, Sourced]:
    return {
        name: Sourced(found.value, Origin(FILE, f"{found.file or path}:{found.line}"))
        for name, found in settings.items()
    }


def _content(found: Dialect, variant: str, keys: dict[str, Sourced], files: list[str]) -> Content:
    renamed = {found.renamed(name): value for name, value in keys.items()}
    block = found.launch.get("environment_block")
    prefix = f"{block}."
    environment = {
        name.removeprefix(prefix): value
        for name, value in keys.items()
        if block and name.startswith(prefix)
    }
    return Content(found, variant, renamed, environment, files)


def _keys_of(path: Path, text: str) -> dict[str, Sourced] | None:
    """Return the keys of a YAML or JSON mapping, those of blocks with dots; None without one.

    Those of a Python file are its names.
    """
    if path.suffix == ".py":
        return _sourced(python_settings.names_in(text), path)
    try:
        loader: Any = yaml_numbers.Loader(yaml_numbers.from_json(text))
        root = loader.get_single_node()
        is_bounded = root is not None and from_yaml.is_bounded(root)
        values = loader.construct_document(root) if is_bounded else None
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    if not is_block(values):
        return None
    return dict(_flat(root, values, "", str(path), 0))


def _flat(
    node: Any, values: Mapping[str, Any], prefix: str, file: str, depth: int
) -> Iterator[tuple[str, Sourced]]:
    for key, inner in getattr(node, "value", []):
        name = str(key.value)
        if name not in values:
            continue
        value, dotted = _converted(values[name]), f"{prefix}{name}"
        yield dotted, Sourced(value, Origin(FILE, f"{file}:{key.start_mark.line + 1}"))
        if is_block(value) and depth < MAX_DEPTH // 20:
            yield from _flat(inner, value, f"{dotted}.", file, depth + 1)


def _converted(value: Any) -> Any:
    """Return a number for a string that contains one, as the programs convert it; ``UNKNOWN`` for a
    variable that is substituted before the run."""
    if not isinstance(value, str):
        return value
    if _VARIABLE.match(value):
        return UNKNOWN
    number = shell_script.value_of(value)
    return number if isinstance(number, int | float) and not isinstance(number, bool) else value


def _of_script(path: Path, text: str, releases: Mapping[str, str]) -> Content | None:
    """Return the options of a script's training command, over the keys of the file it names."""
    files = [str(path)]

    def read(name: str) -> str | None:
        found = found_file(path, name)
        text = None if found is None else _text(found)
        if found is not None and text is not None:
            files.append(str(found))
        return text

    def is_known(script: Script) -> bool:
        return dialects.of_program(script.program, script.options) is not None

    script = shell_script.training_command(text, path.name, read, is_known)
    if script is None:
        return None
    options = {
        name: Sourced(UNKNOWN if value is None else value, _line_of(script, name, path))
        for name, value in script.options.items()
    }
    in_file = _of_arguments_file(path, text, script, files)
    keys = in_file or {}
    if in_file and script.options.get("config", "") == script.arguments_file:
        del options["config"]  # it was read
    values = {name: found.value for name, found in {**keys, **options}.items()}
    configured = _script_beside(path, script, values)
    if configured is not None:
        keys = {**configured.settings, **keys}
    found = _recognized(script, {**keys, **options}, configured, releases)
    if found is None:
        return None
    program, variant = found
    content = _content(program, variant, keys, files)
    own = {program.renamed(name): value for name, value in _switched(program, options)}
    from_file = dict(content.keys)
    content.keys.update(own)
    if program.file_wins(releases.get(program.package) or program.newest):
        content.keys.update(from_file)
    for name, value in (configured.overwritten if configured else {}).items():
        content.keys[program.renamed(name)] = value
    for name, value in script.environment.items():
        known = UNKNOWN if value is None else value
        content.environment[name] = Sourced(known, _exported(name, script, path))
    settings = _accelerate(script, path, files)
    _with_launcher(content, script, settings, path)
    return content._replace(script=script, settings=settings, is_complete=in_file is not None)


def _of_arguments_file(
    path: Path, text: str, script: Script, files: list[str]
) -> dict[str, Sourced] | None:
    """Return the keys of the file of arguments that a command names, or that its script writes;
    None if it cannot be read."""
    file = script.arguments_file or _first_python(script) or _parsed_file(path, script)
    if file is None:
        return {}
    written = script.files.get(file)
    if written is not None:
        lines_before = text.count("\n", 0, written.start)
        return _keys_of(path, "\n" * lines_before + written.text) or {}
    named = found_file(path, file)
    inner = None if named is None else _text(named)
    if named is None or inner is None:
        return None
    files.append(str(named))
    return _keys_of(named, inner)


def _recognized(
    script: Script,
    keys: Mapping[str, Sourced],
    configured: Configured | None,
    releases: Mapping[str, str],
) -> tuple[Dialect, str] | None:
    """Return the program that a command runs, and its variant: by its name, by what a Python script
    beside it configures, by its keys, or, for another script, the one whose release is given."""
    found = dialects.of_program(script.program, keys.keys())
    of_keys = found[0] if found else dialects.of_keys(keys.keys(), releases, of_script=True)
    if configured is not None and of_keys in (None, configured.dialect.base):
        return configured.dialect, configured.variant
    if found is not None:
        return found
    program = of_keys or _generic(script)
    if program in (None, *dialects.bases()) and script.program[-1].endswith(".py"):
        program = dialects.of_releases(releases) or program
    return None if program is None else (program, program.variant_of(script.program[-1], keys))


def _script_beside(path: Path, script: Script, given: Mapping[str, Any]) -> Configured | None:
    """Return what the Python script that is started configures, if it can be read."""
    name = script.program[-1]
    file = found_file(path, name) if name.endswith(".py") else None
    text = None if file is None else _text(file)
    return None if file is None or text is None else _of_calls(file, text, given)


def _parsed_file(path: Path, script: Script) -> str | None:
    """Return the file whose fields the started Python script parses instead of its options."""
    name = script.program[-1]
    inner = found_file(path, name) if name.endswith(".py") else None
    text = None if inner is None else _text(inner)
    given = {name: UNKNOWN if value is None else value for name, value in script.options.items()}
    named = None if text is None else python_settings.file_of_arguments(text, given)
    return named if named is None or isinstance(named, str) else "$file"


def _first_python(script: Script) -> str | None:
    """Return the first argument, if it is a Python file: a config of a program such as xtuner."""
    is_config = script.first is not None and script.first.endswith(".py")
    return script.first if is_config else None


def _generic(script: Script) -> Dialect | None:
    """Return the dialect of a script that no program is known by: that of the Trainer, if it has
    its arguments, or of scripts on accelerate; else None."""
    taken = TAKEN | {"model_name_or_path"}
    of_trainer = (script.options.keys() & taken) - {"deepspeed", "local_rank"}
    if len(of_trainer) > 1:
        return dialects.dialect("transformers")
    return None


def _switched(found: Dialect, options: Mapping[str, Sourced]) -> Iterator[tuple[str, Sourced]]:
    """Yield options; ``--no_flag`` turns a flag off where the program's parser has it."""
    for name, value in options.items():
        if name.startswith("no_") and value.value is True and found.launch["style"] == "hf":
            yield name.removeprefix("no_"), value._replace(value=False)
        else:
            yield name, value


def _line_of(script: Script, name: str, path: Path) -> Origin:
    line, file = script.lines.get(name, (script.line, ""))
    return Origin(FILE, f"{found_file(path, file) if file else path}:{line}")


def found_file(script: Path, name: str) -> Path | None:
    """Return the file that a script names: from the working folder, or beside the script."""
    for folder in (Path(), script.parent, script.parent.parent):
        try:
            path = folder / name
            if os_errors.is_file(path):
                return path
        except (OSError, ValueError):
            return None
    return None


# --- the launcher


def _with_launcher(
    content: Content, script: Script, settings: Mapping[str, Any], path: Path
) -> None:
    """Add what the launcher sets in the environment."""
    precision = script.launch_options.get("mixed_precision") or settings.get("mixed_precision")
    if script.launcher == "accelerate" and isinstance(precision, str):
        origin = _exported("mixed_precision", script, path)
        content.environment["ACCELERATE_MIXED_PRECISION"] = Sourced(precision, origin)


def _exported(name: str, script: Script, path: Path) -> Origin:
    """Return the origin of a variable that is set for the command."""
    return Origin(ENVIRONMENT, f"{name} ({path}:{script.line})")


def _accelerate(script: Script, path: Path, files: list[str]) -> Mapping[str, Any]:
    """Return the settings of the accelerate YAML that the launcher reads."""
    named = None if script.launch_config is None else found_file(path, script.launch_config)
    text = None if named is None else _text(named)
    keys = None if named is None or text is None else _keys_of(named, text)
    if keys is not None and str(named) not in files:
        files.append(str(named))
    return {name: value.value for name, value in (keys or {}).items()}


def started_ranks(content: Content, path: Path) -> dict[str, Sourced]:
    """Return the numbers of ranks and nodes that the launcher starts."""
    script = content.script
    if script is None:
        return {}
    origin = Origin(DERIVED, f"{path}:{script.line}")
    counts: Mapping[str, Any] = script.content.get(LAUNCH) or {}
    found = {"nodes": counts.get("nodes"), "ranks": counts.get("gpus")}
    if script.launcher == "accelerate":
        found["ranks"] = found["ranks"] or content.settings.get("num_processes")
        found["nodes"] = found["nodes"] or content.settings.get("num_machines")
    if script.launcher == "deepspeed" and not found["ranks"]:
        hosts = _hosts(script, path)
        if hosts:
            each = script.launch_options.get("num_gpus")
            slots = len(hosts) * each if each else sum(map(len, hosts.values()))
            found = {"ranks": slots, "nodes": len(hosts)}
    return {name: Sourced(n, origin) for name, n in found.items() if type(n) is int and n > 0}


def _hosts(script: Script, path: Path) -> hostfile.Slots | None:
    """Return the hosts and slots of the hostfile that the launcher reads."""
    named = script.launch_options.get("hostfile")
    if not isinstance(named, str):
        return None
    file = found_file(path, named)
    text = script.files[named].text if named in script.files else _text(file) if file else None
    options = script.launch_options
    try:
        hosts = hostfile.parse((text or "").splitlines())
        found = hostfile.select(hosts, options.get("include"), options.get("exclude"))
    except ValueError:
        return None
    most = options.get("num_nodes")
    return dict(list(found.items())[: most if type(most) is int and most > 0 else None])
