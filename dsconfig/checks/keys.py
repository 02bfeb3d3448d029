"""Rules for unknown, misspelled, misplaced, renamed, duplicate and comment keys."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dsconfig.checks.context import Context
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import REJECTED, Finding, Phase, reaches_deepspeed
from dsconfig.checks.stray_names import (
    NEVER_READ,
    common_mistake,
    foreign_name_help,
    is_script_setting,
)
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Applicability, Edit, Effect, Fix
from dsconfig.runtimes.base import AUTO
from dsconfig.runtimes.reading import Outcome
from dsconfig.schema import ErrorKind, SchemaError, former_names
from dsconfig.schema.paths import BFLOAT16, OPTIMIZER_PARAMS, SCHEDULER_PARAMS, ZERO, KeyPath
from dsconfig.schema.version import Version
from dsconfig.source.document import OWN_KEYS
from dsconfig.source.edit import as_fix, delete_entry, move_entry, rename_key, replace_value
from dsconfig.source.pointer import is_block, split

with lazy_imports():
    from dsconfig.schema import spelling

COMMENT_MARKS = ("_", "//", "#", "$", "/*", "--")
COMMENT_WORDS = ("comment", "comments", "note", "notes", "description")
IGNORED = "it is silently ignored"
PARAMETERS = (OPTIMIZER_PARAMS, SCHEDULER_PARAMS)


class Renamed(NamedTuple):
    """A renamed key; ``new`` is None if a plain rename would change the meaning."""

    since: Version
    new: KeyPath | None
    advice: str


def renamed(config: Context, path: KeyPath) -> Renamed | None:
    """Return what replaced an old name, or None if the path is not one."""
    known = config.key_at(path)
    if known is None or not known.declared.renamed or known.replaced_by is None:
        return None
    since, instead = Version.parse(known.declared.renamed), known.declared.instead
    if instead is not None:
        return Renamed(since, None, instead)
    new = KeyPath.parse(known.replaced_by)
    return Renamed(since, new, f'write "{new[-1]}"')


def is_comment(name: str) -> bool:
    """Return whether a key is a comment instead of a setting."""
    return name.startswith(COMMENT_MARKS) or name.strip().lower() in COMMENT_WORDS


def _unknown(config: Context) -> Iterator[tuple[KeyPath, SchemaError]]:
    """Yield unknown keys outside the arguments of optimizer and scheduler."""
    for error in config.schema_errors:
        path = split(error.pointer)
        if error.kind is not ErrorKind.UNKNOWN or path[:2] in PARAMETERS:
            continue
        entry = config.reading.at(path)
        if entry is None or entry.outcome not in (Outcome.TWICE, Outcome.SWALLOWED):
            yield path, error


def _refused(config: Context, path: KeyPath) -> bool:
    entry = config.reading.at(path)
    return entry is not None and entry.refused


def _consequence(config: Context, path: KeyPath, otherwise: str) -> str:
    if _refused(config, path):
        return f"DeepSpeed {config.release} rejects unknown keys in {path.parent.dotted}"
    return otherwise


UNKNOWN = "DSC021"


@rule(UNKNOWN, Effect.ALTERED, also=(Effect.REFUSED,), on_templates=True)
def unknown_key(config: Context) -> Iterator[Finding]:
    """Unknown key

    No release of DeepSpeed, transformers or accelerate reads this key. At the top level and in
    blocks such as `optimizer`, `activation_checkpointing` or `aio`, DeepSpeed silently ignores it.
    In `zero_optimization`, `fp16`, `bf16` and other validated blocks, DeepSpeed rejects the config.

    bad: {"train_batch_size": 8, "gradient_cliping": 0.5}
    good: {"train_batch_size": 8, "gradient_clipping": 0.5}
    """
    for path, error in _unknown(config):
        if is_comment(path[-1]) or path == ("$schema",) or renamed(config, path):
            continue
        if path not in NEVER_READ and valid_paths(config, path):
            continue
        refused = _refused(config, path)
        suggestion = _suggestion(config, path, error)
        yield Finding(
            path=path,
            message=f'unknown key "{path}": ' + _consequence(config, path, IGNORED),
            help=suggestion.help,
            effect=Effect.REFUSED if refused else None,
            fix=_write_as(config, path, suggestion.new, refused and suggestion.is_certain)
            if suggestion.new
            else None,
            on_key=True,
        )


NO_SUGGESTION = "delete it, or look up its current name"


class _Suggestion(NamedTuple):
    """Replacement of an unknown key; ``is_certain`` if only the spelling differs."""

    help: str
    new: KeyPath | None = None
    is_certain: bool = False


def _suggestion(config: Context, path: KeyPath, error: SchemaError) -> _Suggestion:
    mistake = common_mistake(config, path)
    if mistake is not None:
        return _Suggestion(mistake.advice, mistake.new, is_certain=True)
    if path in NEVER_READ:  # its replacement is not in this release
        return _Suggestion("delete it")
    foreign = foreign_name_help(path)
    if foreign is not None:
        return _Suggestion(foreign)
    value = config.get(*path)
    closest = config.closest(path[-1], error.known)
    if closest and spelling.has_other_word(path[-1], closest):
        closest = closest if config.accepts(path.parent / closest, value) else None
    if closest and (
        not spelling.is_longer_or_shorter(path[-1], closest)
        or spelling.has_other_ending(path[-1], closest)
        or (path[-1] in closest[: len(path[-1])] and config.accepts(path.parent / closest, value))
    ):
        is_certain = spelling.same_letters(path[-1], closest)
        return _Suggestion(f'did you mean "{closest}"?', path.parent / closest, is_certain)
    for nested in spelling.flattened(path):
        if config.accepts(nested, value):
            works = nested[-1] == "enabled" or config.is_in_force(nested.parent)
            help = f'write it as "{nested.name}" in {nested.parent}'
            return _Suggestion(help, nested if works else None)
    return _Suggestion(NO_SUGGESTION)


def valid_paths(config: Context, path: KeyPath) -> tuple[KeyPath, ...]:
    """Return the paths at which the name is read, given the types in the config."""
    paths = () if is_script_setting(path) else spelling.other_paths(path)
    return tuple(
        other for other in paths if other[:2] not in PARAMETERS or config.key_at(other) is not None
    )


@rule("DSC029", Effect.REFUSED, also=(Effect.INERT,), on_templates=True)
def documented_but_unread(config: Context) -> Iterator[Finding]:
    """Documented key that no release reads

    DeepSpeed's documentation lists this key. In a validated block DeepSpeed rejects it; elsewhere
    it has no effect.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "grad_hooks": true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    """
    for path in config.paths:
        if config.is_unread(path) and not renamed(config, path):
            refused = _refused(config, path)
            yield Finding(
                path=path,
                message=f'"{path}" is documented, but no release of DeepSpeed reads it: '
                + _consequence(config, path, "it has no effect"),
                help="delete it",
                effect=None if refused else Effect.INERT,
                fix=as_fix(delete_entry(config.document, path.pointer), safe=refused),
                on_key=True,
            )


@rule("DSC022", Effect.ALTERED, also=(Effect.REFUSED,), on_templates=True)
def misplaced_key(config: Context) -> Iterator[Finding]:
    """Key in the wrong block

    bad: {"train_batch_size": 8, "reduce_bucket_size": 5e7}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e7}}
    """
    for path, error in _unknown(config):
        if is_comment(path[-1]) or path in NEVER_READ or renamed(config, path):
            continue
        paths = valid_paths(config, path)
        if not paths:
            continue
        closest = config.closest(path[-1], error.known)
        hint = f', or did you mean "{closest}"?' if closest else ""
        blocks = " or ".join(other.parent.dotted or "the top level" for other in paths)
        refused = _refused(config, path)
        is_movable = len(paths) == 1 and config.is_in_force(paths[0].parent)
        is_misspelled = closest is not None and spelling.same_letters(closest, path[-1])
        yield Finding(
            path=path,
            message=f'"{path[-1]}" belongs in {blocks}: '
            + _consequence(config, path, "here it is silently ignored"),
            help=f"move it to {' or '.join(str(other) for other in paths)}{hint}",
            effect=Effect.REFUSED if refused else None,
            fix=_write_as(config, path, paths[0], safe=False)
            if is_movable and not is_misspelled
            else None,
            on_key=True,
        )


@rule("DSC023", Effect.ALTERED, also=(Effect.REFUSED,), on_templates=True)
def renamed_key(config: Context) -> Iterator[Finding]:
    """Renamed key

    The old name is ignored or rejected.

    bad: {"train_batch_size": 8, "aio": {"thread_count": 4}}
    good: {"train_batch_size": 8, "aio": {"intra_op_parallelism": 4}}
    """
    for path in config.paths:
        old = renamed(config, path)
        if old is None or config.version < old.since:
            continue
        refused = _refused(config, path)
        consequence = f"DeepSpeed {config.release} rejects it" if refused else IGNORED
        yield Finding(
            path=path,
            message=f'"{path}" was renamed in DeepSpeed {old.since}: {consequence}',
            help=old.advice,
            effect=Effect.REFUSED if refused else None,
            fix=_write_as(config, path, old.new, refused) if old.new else None,
            on_key=True,
        )


def _write_as(config: Context, path: KeyPath, new: KeyPath, safe: bool) -> Fix | None:
    """Return the fix that renames or moves an entry, or None if its value is invalid there."""
    if config.has(*new) or not config.accepts(new, config.get(*path)):
        return None
    pointer = path.pointer
    if new[:-1] == path[:-1]:
        edits = rename_key(config.document, pointer, new[-1])
    else:
        edits = move_entry(config.document, pointer, new.parent.pointer, new[-1])
    return as_fix(edits, safe=safe)


class Deprecated(NamedTuple):
    """Behavior of a deprecated key."""

    consequence: str
    new: str | None = None
    """Current name, if it has the same meaning."""
    idle: str | None = None
    """Consequence of false, for a switch that became a block with a device."""
    works: bool = True
    """Whether some value still has an effect."""


DEPRECATED: Mapping[KeyPath, Deprecated] = {
    ZERO / "cpu_offload": Deprecated(
        'DeepSpeed reads it as "offload_optimizer": {"device": "cpu"}',
        "offload_optimizer",
        "it has no effect",
    ),
    ZERO / "cpu_offload_param": Deprecated(
        'DeepSpeed reads it as "offload_param": {"device": "cpu"}',
        "offload_param",
        "it has no effect",
    ),
    ZERO / "cpu_offload_use_pin_memory": Deprecated("its value is ignored", works=False),
    ZERO / "stage3_gather_fp16_weights_on_model_save": Deprecated(
        "DeepSpeed reads it as stage3_gather_16bit_weights_on_model_save",
        "stage3_gather_16bit_weights_on_model_save",
    ),
    ZERO / "elastic_checkpoint": Deprecated(
        "universal checkpoints replace it, and at stage 3 it has no effect"
    ),
    BFLOAT16: Deprecated("it is read only if bf16 is absent", "bf16"),
}


@rule(
    "DSC024",
    Effect.DEPRECATED,
    also=(Effect.INERT,),
    triggers="zero_optimization bfloat16",
    on_templates=True,
)
def deprecated_key(config: Context) -> Iterator[Finding]:
    """Deprecated key

    DeepSpeed logs a warning. Most deprecated keys still work; where the value no longer has any
    effect (`cpu_offload: false`), the effect is `inert`.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "cpu_offload": true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device":
        "cpu"}}}
    """
    for path, key in config.keys:
        since = key.declared.deprecated
        if since is None or config.version < Version.parse(since):
            continue
        value, old = config.get(*path), DEPRECATED[path]
        edits = _modernized(config, path, old, value)
        is_off = old.idle is not None and not value
        consequence = old.idle if is_off else old.consequence
        yield Finding(
            path=path,
            message=f'"{path}" is deprecated: {consequence}',
            help="delete it" if is_off else key.declared.instead,
            effect=Effect.INERT if is_off or not old.works else None,
            fix=Fix(Applicability.SAFE, edits) if edits else None,
            on_key=True,
        )


def _modernized(config: Context, path: KeyPath, old: Deprecated, value: Any) -> tuple[Edit, ...]:
    """Return edits that replace a deprecated key, unless its replacement is also present."""
    document, pointer, block = config.document, path.pointer, path.parent
    current = config.key_at(block / old.new) if old.new else None
    if current is None or any(
        config.has(*block, name) for name in (current.name, *current.aliases)
    ):
        return ()
    renaming = rename_key(document, pointer, current.name)
    if old.idle is None:
        return renaming
    if value is True:
        return (*renaming, *replace_value(document, pointer, {"device": "cpu"}))
    return delete_entry(document, pointer) if value is False or value is None else ()


@rule("DSC025", Effect.REFUSED, triggers="zero_optimization tensor_parallel", on_templates=True)
def key_under_two_names(config: Context) -> Iterator[Finding]:
    """Key set under both of its names

    DeepSpeed rejects the second name as an extra input.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size":
        100, "prefetch_bucket_size": 200}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size":
        100}}
    """
    for path, entry in config.reading.entries.items():
        if entry.outcome is Outcome.TWICE and entry.field is not None:
            yield Finding(
                path=path,
                message=f'"{path[-1]}" and "{entry.field.name}" are two names of one key: '
                "DeepSpeed rejects the first as an extra input",
                help=f'keep "{entry.field.name}"',
                on_key=True,
            )


@rule(
    "DSC026",
    Effect.REFUSED,
    triggers="zero_optimization",
    releases="0.7.0 to",
    stops="AssertionError",
)
def deprecated_and_replacement(config: Context) -> Iterator[Finding]:
    """Deprecated key together with its replacement

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "cpu_offload": true,
        "offload_optimizer": {"device": "cpu"}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device":
        "cpu"}}}
    """
    block = config.block(*ZERO)
    for name, old in (former_names.SWITCHES | former_names.RENAMED).items():
        known, path = config.key_at(ZERO / name), ZERO / old
        if block.get(old, AUTO) == AUTO or known is None:
            continue
        for new in (name, *known.aliases):
            if block.get(new, AUTO) != AUTO:
                yield Finding(
                    path=path,
                    message=f'"{old}" and its replacement "{new}" are both set: {REJECTED}',
                    help=f'delete "{old}"',
                    fix=as_fix(delete_entry(config.document, path.pointer))
                    if _means_the_same(block[old], block[new])
                    else None,
                    on_key=True,
                )


def _means_the_same(old: object, new: object) -> bool:
    """Return whether a former key has the meaning of its replacement, which may be a block."""
    if is_block(new):
        return (old is True) == (new.get("device") == "cpu")
    return old == new


@rule("DSC027", Effect.REFUSED, also=(Effect.NOTE,), on_templates=True)
def comment_key(config: Context) -> Iterator[Finding]:
    """Key used as a comment

    At the top level, and in blocks that ignore unknown keys, it has no effect. In a validated block
    DeepSpeed rejects it, and in the arguments of an optimizer or scheduler the constructor raises a
    TypeError.

    bad: {"train_batch_size": 8, "fp16": {"enabled": true, "_comment": "V100"}}
    good: {"train_batch_size": 8, "fp16": {"enabled": true}}
    """
    for error in config.schema_errors:
        path = split(error.pointer)
        if error.kind is not ErrorKind.UNKNOWN or not is_comment(path[-1]):
            continue
        if path[0] in OWN_KEYS and len(path) == 1:
            continue
        argument = path[:2] in PARAMETERS
        refused = _refused(config, path) or argument
        block = path.parent.dotted or "the top level"
        program = "the constructor" if argument else f"DeepSpeed {config.release}"
        yield Finding(
            path=path,
            message=f'"{path[-1]}" is a comment in {block}: {program} rejects it'
            if refused
            else f'"{path[-1]}" is a comment; it is ignored in {block}',
            help="move the comment to the top level, or write a // comment" if refused else None,
            effect=None if refused else Effect.NOTE,
            phase=Phase.OPTIMIZER if argument else None,
            exception="TypeError" if argument else None,
            fix=as_fix(delete_entry(config.document, error.pointer)) if refused else None,
            on_key=True,
        )


@rule("DSC028", Effect.INERT, applies_to=reaches_deepspeed)
def consumed_key(config: Context) -> Iterator[Finding]:
    """Key consumed by DeepSpeed's config class

    `strict` in a validated block is an argument of DeepSpeed's own config class and sets nothing;
    true makes DeepSpeed reject "auto" instead of ignoring it.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "strict": true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    """
    for path, entry in config.reading.entries.items():
        if entry.outcome is Outcome.SWALLOWED:
            yield Finding(
                path=path,
                message=f'"{path}" is an argument of DeepSpeed\'s config class and sets nothing',
                help="delete it",
                on_key=True,
            )
