"""Read the file that a person launches: its program, the facts of the run, and its ds_config.

A launch file is a trainer's YAML or JSON, or a shell script; it leads to the files that it names.
Nothing in it is executed.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from dsconfig import hostfile, os_errors
from dsconfig.facts import dialects
from dsconfig.facts.dialects import Dialect
from dsconfig.facts.launch_facts import (
    DEFAULT,
    DERIVED,
    FILE,
    UNKNOWN,
    LaunchedKeys,
    Origin,
    Sourced,
)
from dsconfig.facts.trainer_fields import TAKEN
from dsconfig.schema import paths
from dsconfig.schema.paths import KeyPath
from dsconfig.source import (
    Document,
    findings,
    from_yaml,
    plugin_settings,
    python_settings,
    reading,
    shell_script,
    yaml_numbers,
)
from dsconfig.source.document import LAUNCH
from dsconfig.source.file_kinds import SCRIPTS
from dsconfig.source.pointer import MAX_DEPTH, is_block, value_at
from dsconfig.source.shell_script import Script

LARGEST = 8 * 2**20
"""Bytes of a launch file that is read."""
NAMES = (
    *("model", "lora", "lora_rank", "base_bits", "precision", "gradient_checkpointing"),
    *("seq_len", "micro_batch", "accumulation", "optimizer", "lr_scheduler", "zero_stage"),
    *("offload", "ranks", "nodes", "attention", "liger", "packing"),
)
"""The facts of a launch, in the order in which they are shown."""
COUNTS = ("lora_rank", "base_bits", "seq_len", "micro_batch", "accumulation", "ranks", "nodes")
"""Facts that are integers; another value, such as "auto", is not known."""


_VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*\}?$|\$\{\{|\{\{.*\}\}$")
"""A value that is a variable of a shell or template."""


class NotUnderstood(NamedTuple):
    """A key that may change the answer, and where it is written."""

    key: str
    source: str


class Launch(NamedTuple):
    """What a launch file states.

    ``own``: the facts before those of the ds_config take precedence. ``document``: the ds_config,
    None without one. ``files``: all files that were read.
    """

    file: str
    program: Dialect
    release: str
    variant: str
    facts: Mapping[str, Sourced]
    own: Mapping[str, Sourced]
    keys: Mapping[str, Sourced]
    document: Document | None
    not_understood: tuple[NotUnderstood, ...]
    files: tuple[str, ...]
    release_is_stated: bool = False

    def value(self, fact: str) -> Any:
        """Return the value of a fact, or None."""
        found = self.facts.get(fact)
        return None if found is None else found.value


class _Content(NamedTuple):
    """Keys of a file or command, and what launches it."""

    dialect: Dialect
    variant: str
    keys: dict[str, Sourced]
    environment: dict[str, Sourced]
    files: list[str]
    script: Script | None = None
    settings: Mapping[str, Any] = MappingProxyType({})
    """Settings of the accelerate YAML that the launcher reads."""


def launch_in(
    file: str,
    releases: Mapping[str, str] | None = None,
    stated: Mapping[str, Sourced] | None = None,
) -> Launch | None:
    """Return what a launch file states, or None for a file of another kind.

    ``releases``: releases of programs by package, else the newest known; ``stated``: facts that
    take precedence, by name.
    """
    path = Path(file)
    text = _text(path)
    if text is None:
        return None
    releases = releases or {}
    is_script = path.suffix in SCRIPTS
    content = _of_script(path, text, releases) if is_script else _of_settings(path, text)
    if content is None:
        return None
    program = content.dialect
    specified = releases.get(program.package)
    release = specified or program.newest
    keys = LaunchedKeys(
        program,
        content.variant,
        release,
        content.keys,
        content.environment,
        dict(stated or {}),
        _script_name(content.script),
    )
    named = _named_config(content)
    keys.has_deepspeed = named is not None or bool(program.ds_config)
    launcher = _ranks(content, path)
    keys.stated = {**launcher, **keys.stated}
    if "ranks" not in keys.stated:
        ranks = _started(keys)
        keys.stated = {**keys.stated, **({"ranks": ranks} if ranks else {})}
    document = _config(path, named, keys, content)
    own = _own_facts(keys)
    return Launch(
        file,
        program,
        release,
        content.variant,
        _facts(own, document),
        own,
        content.keys,
        document,
        tuple(_not_understood(keys)),
        tuple(content.files),
        specified is not None,
    )


def _script_name(script: Script | None) -> str:
    """Return the file name of the Python script that is started; empty for a program."""
    name = "" if script is None else script.program[-1].rpartition("/")[2]
    return name if name.endswith(".py") else ""


def _text(path: Path) -> str | None:
    try:
        if not os_errors.is_file(path) or path.stat().st_size > LARGEST:
            return None
        return path.read_text("utf-8-sig")
    except (OSError, ValueError):
        return None


# --- keys


def _of_settings(path: Path, text: str) -> _Content | None:
    """Return the keys of a YAML or JSON with the settings of a program."""
    keys = _keys_of(path, text)
    if keys is None:
        return None
    found = dialects.of_keys(keys.keys())
    if found is None and path.suffix == ".py":
        configured = _of_calls(path, text)
        return None if configured is None else _content(*configured, [str(path)])
    return None if found is None else _content(found, "", keys, [str(path)])


def _of_calls(path: Path, text: str) -> tuple[Dialect, str, dict[str, Sourced]] | None:
    """Return the program, its variant and the settings of a Python script with a Trainer."""
    classes = dialects.classes()
    found = python_settings.trainer_settings(text, classes)
    return None if found is None else (*classes[found[0]], _sourced(found[1], path))


def _sourced(settings: Mapping[str, python_settings.Setting], path: Path) -> dict[str, Sourced]:
    return {
        name: Sourced(
            UNKNOWN if found.value is python_settings.UNKNOWN else found.value,
            Origin(FILE, f"{path}:{found.line}"),
        )
        for name, found in settings.items()
    }


def _content(found: Dialect, variant: str, keys: dict[str, Sourced], files: list[str]) -> _Content:
    renamed = {found.renamed(name): value for name, value in keys.items()}
    block = found.launch.get("environment_block")
    prefix = f"{block}."
    environment = {
        name.removeprefix(prefix): value
        for name, value in keys.items()
        if block and name.startswith(prefix)
    }
    return _Content(found, variant, renamed, environment, files)


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


def _of_script(path: Path, text: str, releases: Mapping[str, str]) -> _Content | None:
    """Return the options of a script's training command, over the keys of the file it names."""
    files = [str(path)]

    def read(name: str) -> str | None:
        found = _found(path, name)
        text = None if found is None else _text(found)
        if found is not None and text is not None:
            files.append(str(found))
        return text

    script = shell_script.training_command(text, path.name, read)
    if script is None:
        return None
    options = {
        name: Sourced(UNKNOWN if value is None else value, _line_of(script, name, path))
        for name, value in script.options.items()
    }
    keys = _of_arguments_file(path, text, script, files)
    configured = _script_beside(path, script)
    if configured is not None:
        keys = {**configured[2], **keys}
    found = _recognised(script, {**keys, **options}, configured, releases)
    if found is None:
        return None
    program, variant = found
    content = _content(program, variant, keys, files)
    own = {program.renamed(name): value for name, value in _switched(program, options)}
    from_file = dict(content.keys)
    content.keys.update(own)
    if program.file_wins(releases.get(program.package) or program.newest):
        content.keys.update(from_file)
    for name, value in script.environment.items():
        known = UNKNOWN if value is None else value
        content.environment[name] = Sourced(known, Origin(FILE, f"{path}:{script.line}"))
    settings = _accelerate(script, path, files)
    _with_launcher(content, script, settings, path)
    return content._replace(script=script, settings=settings)


def _of_arguments_file(
    path: Path, text: str, script: Script, files: list[str]
) -> dict[str, Sourced]:
    """Return the keys of the file of arguments that a command names, or that its script writes."""
    file = script.arguments_file or _first_python(script)
    if file is None:
        return {}
    written = script.files.get(file)
    if written is not None:
        lines_before = text.count("\n", 0, written.start)
        return _keys_of(path, "\n" * lines_before + written.text) or {}
    named = _found(path, file)
    inner = None if named is None else _text(named)
    if named is None or inner is None:
        return {}
    files.append(str(named))
    return _keys_of(named, inner) or {}


def _recognised(
    script: Script,
    keys: Mapping[str, Sourced],
    configured: tuple[Dialect, str, dict[str, Sourced]] | None,
    releases: Mapping[str, str],
) -> tuple[Dialect, str] | None:
    """Return the program that a command runs, and its variant: by its name, by what a Python script
    beside it configures, by its keys, or, for another script, the one whose release is given."""
    found = dialects.of_program(script.program, keys.keys())
    of_keys = found[0] if found else dialects.of_keys(keys.keys())
    if configured is not None and of_keys in (None, configured[0].base):
        return configured[:2]
    if found is not None:
        return found
    program = of_keys or _generic(script)
    if program in (None, *dialects.bases()) and script.program[-1].endswith(".py"):
        program = dialects.of_releases(releases) or program
    return None if program is None else (program, program.variant_of(script.program[-1]))


def _script_beside(path: Path, script: Script) -> tuple[Dialect, str, dict[str, Sourced]] | None:
    """Return what the Python script that is started configures, if it can be read."""
    name = script.program[-1]
    file = _found(path, name) if name.endswith(".py") else None
    text = None if file is None else _text(file)
    return None if file is None or text is None else _of_calls(file, text)


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
    return Origin(FILE, f"{_found(path, file) if file else path}:{line}")


def _found(script: Path, name: str) -> Path | None:
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
    content: _Content, script: Script, settings: Mapping[str, Any], path: Path
) -> None:
    """Add what the launcher sets in the environment."""
    precision = script.launch_options.get("mixed_precision") or settings.get("mixed_precision")
    if script.launcher == "accelerate" and isinstance(precision, str):
        origin = Origin(FILE, f"{path}:{script.line}")
        content.environment["ACCELERATE_MIXED_PRECISION"] = Sourced(precision, origin)


def _accelerate(script: Script, path: Path, files: list[str]) -> Mapping[str, Any]:
    """Return the settings of the accelerate YAML that the launcher reads."""
    named = None if script.launch_config is None else _found(path, script.launch_config)
    text = None if named is None else _text(named)
    keys = None if named is None or text is None else _keys_of(named, text)
    if keys is not None and str(named) not in files:
        files.append(str(named))
    return {name: value.value for name, value in (keys or {}).items()}


def _ranks(content: _Content, path: Path) -> dict[str, Sourced]:
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
        if hosts is not None:
            found = {"ranks": sum(map(len, hosts.values())), "nodes": len(hosts)}
    return {name: Sourced(n, origin) for name, n in found.items() if type(n) is int and n > 0}


def _started(keys: LaunchedKeys) -> Sourced | None:
    """Return the number of ranks that the program itself starts."""
    launch = keys.dialect.launch
    condition = launch.get("ranks_when")
    starts = keys.evaluate(condition) if condition else None
    if "ranks" not in launch or (condition and not (starts and starts.value)):
        return None
    return keys.evaluate(launch["ranks"], inside="ranks")


def _hosts(script: Script, path: Path) -> hostfile.Slots | None:
    """Return the hosts and slots of the hostfile that the launcher reads."""
    named = script.launch_options.get("hostfile")
    if not isinstance(named, str):
        return None
    file = _found(path, named)
    text = script.files[named].text if named in script.files else _text(file) if file else None
    options = script.launch_options
    try:
        hosts = hostfile.parse((text or "").splitlines())
        return hostfile.select(hosts, options.get("include"), options.get("exclude")) or None
    except ValueError:
        return None


# --- the ds_config


def _named_config(content: _Content) -> Sourced | None:
    """Return what names the ds_config: a path, a built-in name, or the config itself."""
    for key in content.dialect.launch.get("deepspeed", ()):
        found = content.keys.get(key)
        if found is not None and found.value not in (None, True, False, UNKNOWN):
            return found
    script = content.script
    if script is None or plugin_settings.turned_off_by(script.launch_options):
        return None
    named = script.config
    if named is None and _is_for_deepspeed(script, content.settings):
        named = script.launch_config
    uses = named or plugin_settings.launch_of_options(script.launch_options)
    return Sourced(named, Origin(FILE, script.launcher)) if uses else None


def _is_for_deepspeed(script: Script, settings: Mapping[str, Any]) -> bool:
    """Return whether ``accelerate launch`` with these settings uses DeepSpeed."""
    kind = settings.get("distributed_type", plugin_settings.DEEPSPEED)
    return kind == plugin_settings.DEEPSPEED or bool(script.launch_options.get("use_deepspeed"))


def _config(
    path: Path, named: Sourced | None, keys: LaunchedKeys, content: _Content
) -> Document | None:
    """Return the ds_config of a launch."""
    program = keys.dialect
    release = f"{program.title} {keys.release}".strip()
    if program.ds_config and (named is None or not isinstance(named.value, str)):
        return reading.document_from_dict(_built(keys), f"ds_config of {release}")
    if named is None:
        return None
    name = named.value
    is_text = isinstance(name, str)
    file = _found(path, name) if is_text else None
    shipped = _shipped(program, name) if is_text and file is None else None
    if shipped is not None:
        return reading.document_from_dict(json.loads(shipped), f"{name} of {release}")
    document = reading.read(path)
    if not document.is_unreadable and _has_config(document):
        return document
    if is_block(name) and content.script is None:
        return reading.document_from_dict(name, str(path))
    if file is not None:
        found = reading.read(file)
        return found if _has_config(found) else document
    return document if content.script is None or is_text else None


def _has_config(document: Document) -> bool:
    return all(each.code != findings.NO_CONFIG for each in document.diagnostics)


def _shipped(program: Dialect, name: str) -> str | None:
    configs = program.configs
    if name in configs:
        return configs[name]
    return next((text for known, text in configs.items() if name.endswith(f"/{known}")), None)


def _built(keys: LaunchedKeys) -> dict[str, Any]:
    """Return the ds_config that a program builds from its options."""
    config: dict[str, Any] = {}
    for path, text in keys.dialect.ds_config.items():
        found = keys.evaluate(text)
        if found is None:
            continue
        *blocks, last = path.split(".")
        place = config
        for block in blocks:
            place = place.setdefault(block, {})
        place[last] = found.value
    return config


# --- facts


def _own_facts(keys: LaunchedKeys) -> dict[str, Sourced]:
    """Return the known facts, in order."""
    found = {name: keys.fact(name) for name in (*NAMES, *keys.expressions)}
    return {
        name: fact
        for name, fact in found.items()
        if fact is not None and (name not in COUNTS or type(fact.value) is int)
    }


def _facts(own: Mapping[str, Sourced], document: Document | None) -> dict[str, Sourced]:
    """Return the facts, in order; those of the ds_config take precedence where it decides."""
    found = dict(own)
    config: object = None if document is None else document.value
    if is_block(config) and document is not None:
        found |= _of_config(config, document, own)
    elif document is None and "zero_stage" not in found:
        found["zero_stage"] = Sourced("none", Origin(DERIVED, "no ds_config"))
    return {name: found[name] for name in dict.fromkeys((*NAMES, *found)) if name in found}


_OVERRIDING = {"optimizer": paths.OPTIMIZER_TYPE, "lr_scheduler": paths.SCHEDULER_TYPE}
_SIZES = {"micro_batch": paths.MICRO_BATCH, "accumulation": paths.ACCUMULATION}


def _of_config(
    config: Mapping[str, Any], document: Document, facts: Mapping[str, Sourced]
) -> dict[str, Sourced]:
    """Return the facts that a ds_config decides."""
    at = document.name

    def written(path: KeyPath) -> Sourced | None:
        value = value_at(config, path, None)
        if value is None or value == "auto":
            return None
        place = document.range(path.pointer)
        line = f":{place.start.line + 1}" if place is not None else ""
        return Sourced(value, Origin(FILE, f"{at}{line}"))

    none = Origin(DERIVED, f"{at} has no offload block")
    stage = written(paths.STAGE)
    tiers = {"optimizer": paths.OFFLOAD_OPTIMIZER, "param": paths.OFFLOAD_PARAM}
    offload = {kind: str(value_at(config, path / "device", "none")) for kind, path in tiers.items()}
    place = next(filter(None, map(written, tiers.values())), None)
    found: dict[str, Sourced] = {
        "zero_stage": stage or Sourced(0, Origin(DEFAULT, "DeepSpeed")),
        "offload": Sourced(offload, place.origin if place is not None else none),
    }
    for name, path in _OVERRIDING.items():
        decided = written(path)
        if decided is not None:
            found[name] = decided
    for name, path in _SIZES.items():
        known, decided = facts.get(name), written(path)
        if decided is not None and (known is None or known.origin.kind == DEFAULT):
            found[name] = decided
    known = facts.get("precision")
    for precision, path in paths.HALF_PRECISIONS.items():
        switched = written(path)
        if switched and switched.value is True and (known is None or known.origin.kind == DEFAULT):
            found["precision"] = Sourced(precision, switched.origin)
    return found


def _not_understood(keys: LaunchedKeys) -> Iterator[NotUnderstood]:
    """Yield the keys that may change the answer but decide no fact, and facts that an estimate does
    not use: programs divide samples and layers in ways of their own."""
    for degree in ("sequence_parallel", "tensor_parallel"):
        fact = keys.fact(degree)
        if fact is not None and isinstance(fact.value, int) and fact.value > 1:
            yield NotUnderstood(degree, f"{fact.origin.source}, {fact.value}: not estimated")
    for name, found in keys.keys.items():
        outer = {name[:at] for at, letter in enumerate(name) if letter == "."}
        environment = keys.dialect.launch.get("environment_block")
        if found.value is None or environment in (name, *outer):
            continue
        if found.value is UNKNOWN and name in keys.dialect.names(keys.variant):
            yield NotUnderstood(name, f"{found.origin.source} (known only at run time)")
        elif any(keys.dialect.understands(each, keys.variant) for each in (name, *outer)):
            continue
        elif not is_block(found.value):
            yield NotUnderstood(name, found.origin.source)
