"""Read the file that a person launches: its program, the facts of the run, and its ds_config.

A launch file is a trainer's YAML or JSON, or a shell script; it leads to the files that it names.
Nothing in it is executed.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dsconfig.facts.dialects import Dialect
from dsconfig.facts.launch_content import Content, content_of, found_file, started_ranks
from dsconfig.facts.launch_facts import (
    DEFAULT,
    DERIVED,
    ENVIRONMENT,
    FILE,
    LaunchedKeys,
    Origin,
    Sourced,
)
from dsconfig.report import Diagnostic
from dsconfig.schema import paths
from dsconfig.schema.paths import KeyPath
from dsconfig.source import Document, findings, plugin_settings, reading
from dsconfig.source.override import with_values
from dsconfig.source.pointer import is_block, put, value_at
from dsconfig.source.positions import Offsets
from dsconfig.source.python_settings import UNKNOWN
from dsconfig.source.shell_script import CONFIG_OPTIONS, Script

DEEPEST = 20
"""Blocks of a key whose names are compared with those that a dialect understands."""
NAMES = (
    *("model", "lora", "lora_rank", "base_bits", "precision", "gradient_checkpointing"),
    *("seq_len", "micro_batch", "accumulation", "optimizer", "lr_scheduler", "zero_stage"),
    *("offload", "ranks", "nodes", "attention", "liger", "packing"),
)
"""The facts of a launch, in the order in which they are shown."""
COUNTS = ("lora_rank", "base_bits", "seq_len", "micro_batch", "accumulation", "ranks", "nodes")
"""Facts that are integers; another value, such as "auto", is not known."""
SWITCHES = ("lora", "gradient_checkpointing", "liger", "packing")
DEGREES = ("sequence_parallel", "tensor_parallel")
FROZEN = ("reference_model", "reward_model", "teacher_model")
"""Models beside the one that is trained, which is estimated if they are copies of it."""
TEXTS = ("model", "precision", "optimizer", "lr_scheduler")
"""Facts that are texts; an option without its value is not known."""


class NotUnderstood(NamedTuple):
    """A key that may change the answer, and where it is written."""

    key: str
    source: str


Written = tuple[tuple[KeyPath, Sourced, bool], ...]
"""Keys that a program writes into its ds_config, their values, and whether it keeps a block that is
there."""


class Launch(NamedTuple):
    """What a launch file states.

    ``own``: the facts before those of the ds_config take precedence. ``document``: the ds_config,
    None without one; ``written``: what the program writes into it. ``files``: all files that were
    read.
    """

    file: str
    program: Dialect
    release: str
    variant: str
    facts: Mapping[str, Sourced]
    own: Mapping[str, Sourced]
    keys: Mapping[str, Sourced]
    document: Document | None
    written: Written
    not_understood: tuple[NotUnderstood, ...]
    files: tuple[str, ...]
    release_is_stated: bool = False
    unknown_config: str = ""
    """Where a ds_config is named that only the run knows; empty if it is known or there is none."""

    @property
    def why_no_config(self) -> str:
        """Why a launch has no ds_config that can be read."""
        if self.unknown_config:
            return f"{self.unknown_config} decides it at run time"
        return f"{self.program.title} trains without DeepSpeed"

    def value_of(self, key: str) -> Any:
        """Return the value of a key of the launched program, or None."""
        found = self.keys.get(key)
        return None if found is None else found.value

    def value(self, fact: str) -> Any:
        """Return the value of a fact, or None."""
        found = self.facts.get(fact)
        return None if found is None else found.value


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
    releases = releases or {}
    content = content_of(path, releases)
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
        is_complete=content.is_complete,
    )
    named = _named_config(content) or _mentioned(keys)
    if named is None and not content.is_complete and content.script is not None:
        named = Sourced(UNKNOWN, Origin(FILE, f"{path}:{content.script.line}"))
    keys.has_deepspeed = named is not None or bool(program.ds_config)
    launcher, own = started_ranks(content, path), _started(keys)
    if own is not None and ("ranks" not in launcher or "ranks_when" in program.launch):
        launcher["ranks"] = own
    keys.stated = {**launcher, **keys.stated}
    document = _config(path, named, keys, content)
    written = _written(keys)
    if document is not None:
        document = with_written(document, written, program.title)
    own = _own_facts(keys)
    return Launch(
        file,
        program,
        release,
        content.variant,
        _facts(own, document, program, has_deepspeed=keys.has_deepspeed),
        own,
        content.keys,
        document,
        written,
        (*_unread(content), *_not_understood(keys, document)),
        tuple(content.files),
        specified is not None,
        named.origin.source if named is not None and named.value is UNKNOWN else "",
    )


def _started(keys: LaunchedKeys) -> Sourced | None:
    """Return the number of ranks that the program itself starts."""
    launch = keys.dialect.launch
    condition = launch.get("ranks_when")
    starts = keys.evaluate(condition) if condition else None
    if "ranks" not in launch or (condition and not (starts and starts.value)):
        return None
    return keys.evaluate(launch["ranks"], inside="ranks")


def _script_name(script: Script | None) -> str:
    """Return the file name of the Python script that is started; empty for a program."""
    name = "" if script is None else script.program[-1].rpartition("/")[2]
    return name if name.endswith(".py") else ""


# --- the ds_config


def _named_config(content: Content) -> Sourced | None:
    """Return what names the ds_config: a path, a built-in name, or the config itself; ``UNKNOWN``
    if only the run knows it."""
    for key in content.dialect.launch.get("deepspeed", ()):
        found = content.keys.get(key)
        if found is not None and found.value not in (None, True, False):
            return found
    script = content.script
    if script is None or plugin_settings.turned_off_by(script.launch_options):
        return None
    named = script.config
    if named is None and _is_for_deepspeed(script, content.settings):
        named = script.launch_config
    if script.launch_options.get("config_file", "") is None:
        named = UNKNOWN
    uses = named or plugin_settings.launch_of_options(script.launch_options)
    return Sourced(named, Origin(FILE, script.launcher)) if uses else None


def _mentioned(keys: LaunchedKeys) -> Sourced | None:
    """Return an option about DeepSpeed that the dialect does not know: the program uses it in a way
    of its own."""
    for name, found in keys.keys.items():
        is_about = "deepspeed" in name and found.value not in (None, False, "")
        if is_about and not keys.dialect.understands(name, keys.variant):
            return found._replace(value=UNKNOWN)
    return None


def _is_for_deepspeed(script: Script, settings: Mapping[str, Any]) -> bool:
    """Return whether ``accelerate launch`` with these settings uses DeepSpeed."""
    kind = settings.get("distributed_type", plugin_settings.DEEPSPEED)
    return kind == plugin_settings.DEEPSPEED or bool(script.launch_options.get("use_deepspeed"))


def _config(
    path: Path, named: Sourced | None, keys: LaunchedKeys, content: Content
) -> Document | None:
    """Return the ds_config of a launch."""
    program = keys.dialect
    release = f"{program.title} {keys.release}".strip()
    if program.ds_config and (named is None or not isinstance(named.value, str)):
        return _built(path, keys, content.script)
    if named is None or named.value is UNKNOWN:
        return None
    name = named.value
    is_text = isinstance(name, str)
    file = found_file(path, name) if is_text else None
    shipped = _shipped(program, name) if is_text and file is None else None
    if shipped is not None:
        return reading.document_from_dict(json.loads(shipped), f"{name} of {release}")
    in_code = named.origin.source.rpartition(":")[0] if is_block(name) else ""
    document = reading.read(in_code if in_code.endswith(".py") else path)
    if _has_config(document):
        return document
    if is_block(name) and content.script is None:
        return reading.document_from_dict(name, str(path))
    if file is not None:
        found = reading.read(file)
        return found if _has_config(found) else document
    if isinstance(name, str) and content.script is not None and name in content.script.files:
        return reading.read_text(content.script.files[name].text, name)  # a called script writes it
    return document if content.script is None or is_text else None


def _has_config(document: Document) -> bool:
    return not document.is_unreadable and all(
        each.code != findings.NO_CONFIG for each in document.diagnostics
    )


def _shipped(program: Dialect, name: str) -> str | None:
    configs = program.configs
    names: Mapping[str, str] = program.launch.get("config_names", {})
    name = names.get(name, name)
    if name in configs:
        return configs[name]
    return next((text for known, text in configs.items() if name.endswith(f"/{known}")), None)


def _built(path: Path, keys: LaunchedKeys, script: Script | None) -> Document:
    """Return the ds_config that a program builds from its options, each value at its option."""
    written: Mapping[str, Offsets] = {} if script is None else script.places
    options = {keys.dialect.renamed(KeyPath.parse(at).dotted): at for at in written}
    config: dict[str, Any] = {}
    places: dict[str, Offsets] = {}
    for dotted, text in keys.dialect.ds_config.items():
        key, found = KeyPath.parse(dotted), keys.evaluate(text)
        if found is None:
            continue
        put(config, key, found.value)
        named = next((options[name] for name in keys.names_in(text) if name in options), None)
        if named is not None:
            places[key.pointer] = written[named]
    return reading.document_from_options(config, path, places)


def _written(keys: LaunchedKeys) -> Written:
    """Return what the program writes into the ds_config it is given."""
    found = ((path, keys.evaluate(text)) for path, text in keys.dialect.written.items())
    return tuple(
        (KeyPath.parse(path.replace("?", "")), value, "?" in path)
        for path, value in found
        if value is not None and type(value.value) in (int, bool)
    )


def with_written(document: Document, written: Written, title: str) -> Document:
    """Return the ds_config with what the program ``title`` writes into it, and findings about
    values that differ."""
    config: object = document.value
    if not is_block(config) or not _has_config(document):
        return document
    used = list[tuple[str, Any]]()
    problems = list[Diagnostic]()
    for path, new, keeps_block in written:
        old, block = value_at(config, path, None), value_at(config, path.parent, {})
        is_kept = keeps_block and path.parent[0] in config
        if not is_kept and is_block(block):
            used.append((path.pointer, new.value))
        if old not in (None, "auto", new.value):
            stated, place = f"{new.value} ({new.origin.source})", document.range(path.pointer)
            problems.append(
                findings.written_twice(path, old, stated, title, place, is_kept=is_kept)
            )
    return with_values(document._replace(diagnostics=(*document.diagnostics, *problems)), used)


# --- facts


def _own_facts(keys: LaunchedKeys) -> dict[str, Sourced]:
    """Return the known facts, in order."""
    found = {name: keys.fact(name) for name in (*NAMES, *keys.expressions)}
    for name in SWITCHES:
        fact = found[name]
        if fact is not None and fact.value in (0, 1):  # as argparse reads them
            found[name] = fact._replace(value=bool(fact.value))
    return {
        name: fact
        for name, fact in found.items()
        if fact is not None
        and (name not in COUNTS or type(fact.value) is int)
        and (name not in TEXTS or type(fact.value) is str)
    }


def _facts(
    own: Mapping[str, Sourced],
    document: Document | None,
    program: Dialect,
    *,
    has_deepspeed: bool,
) -> dict[str, Sourced]:
    """Return the facts, in order; those of the ds_config take precedence where it decides."""
    found = dict(own)
    config: object = None if document is None else document.value
    if is_block(config) and document is not None and _has_config(document):
        found |= _of_config(config, document, own)
        found |= _unswitched(config, document, program, own)
    elif not has_deepspeed and "zero_stage" not in found:
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
    if document.is_generated:
        return found  # the launcher's precision is in it, which the program's replaces
    for precision, path in paths.HALF_PRECISIONS.items():
        switched = written(path)
        if switched and switched.value is True and (known is None or known.origin.kind == DEFAULT):
            found["precision"] = Sourced(precision, switched.origin)
    return found


def _unswitched(
    config: Mapping[str, Any], document: Document, program: Dialect, facts: Mapping[str, Sourced]
) -> dict[str, Sourced]:
    """Return the precision of a Trainer whose arguments do not have the one of its launcher: they
    decide an "auto" of the config that they name."""
    asked = facts.get("precision")
    in_yaml = plugin_settings.block_of(document.launcher.settings)
    is_named = program.reader == "transformers" and not in_yaml
    if asked is None or asked.origin.kind != ENVIRONMENT or not is_named:
        return {}
    switch = paths.HALF_PRECISIONS.get(asked.value)
    if switch is None or value_at(config, switch, None) != "auto":
        return {}
    return {"precision": Sourced("fp32", Origin(DERIVED, f"no {asked.value} in the arguments"))}


def _unread(content: Content) -> Iterator[NotUnderstood]:
    """Yield the file of arguments that a command names but that cannot be read."""
    script = content.script
    if not content.is_complete and script is not None and script.arguments_file is not None:
        yield NotUnderstood(script.arguments_file, f"{content.files[0]}:{script.line} (not read)")


def _not_understood(keys: LaunchedKeys, document: Document | None) -> Iterator[NotUnderstood]:
    """Yield the keys that may change the answer but decide no fact, and facts that an estimate does
    not use: programs divide samples and layers in ways of their own."""
    model = keys.fact("model")
    config: object = None if document is None else document.value
    divided = value_at(config, paths.AUTOTP_SIZE, None) if is_block(config) else None
    for name in (*DEGREES, *FROZEN, "critic_model"):
        fact = keys.fact(name)
        if name == "tensor_parallel" and fact is not None and fact.value == divided:
            continue
        is_copy = name in FROZEN and fact and model and fact.value == model.value
        is_one = name in DEGREES and fact and not (type(fact.value) is int and fact.value > 1)
        if fact is not None and not is_copy and not is_one:
            yield NotUnderstood(name, f"{fact.origin.source}, {fact.value}: not estimated")
    for name, found in keys.keys.items():
        parts = name.split(".", DEEPEST)[:DEEPEST]
        outer = {".".join(parts[:count]) for count in range(1, len(parts))}
        environment = keys.dialect.launch.get("environment_block")
        is_config = name in CONFIG_OPTIONS and found.value is not UNKNOWN
        if found.value is None or is_config or environment in (name, *outer):
            continue
        if found.value is UNKNOWN and name in keys.dialect.names(keys.variant):
            yield NotUnderstood(name, f"{found.origin.source} (known only at run time)")
        elif any(keys.dialect.understands(each, keys.variant) for each in (name, *outer)):
            continue
        elif not is_block(found.value):
            yield NotUnderstood(name, found.origin.source)
