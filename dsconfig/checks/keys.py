"""Keys nobody reads: unknown, misspelt, misplaced, renamed, doubled, or mere comments."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dsconfig.checks.context import Context
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import Finding, Path, reaches_deepspeed
from dsconfig.checks.stray_names import NEVER_READ, called, is_script_setting, of_another_place
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Applicability, Edit, Effect, Fix
from dsconfig.runtimes.read_config import ZERO
from dsconfig.runtimes.reading import Outcome
from dsconfig.schema import ErrorKind, SchemaError
from dsconfig.schema.version import Version
from dsconfig.source.document import OWN_KEYS
from dsconfig.source.edit import as_fix, delete_entry, move_entry, rename_key, replace_value
from dsconfig.source.pointer import join, split

with lazy_imports():
    from dsconfig.checks import spelling

COMMENT_MARKS = ("_", "//", "#", "$", "/*", "--")
COMMENT_WORDS = ("comment", "comments", "note", "notes", "description")
IGNORED = "it is ignored without a word"
PARAMETERS = (("optimizer", "params"), ("scheduler", "params"))


class Renamed(NamedTuple):
    """``new`` is None where a plain rename would not keep the meaning."""

    since: Version
    new: Path | None
    advice: str


def _dotted(path: Path) -> str:
    return ".".join(path)


def renamed(config: Context, path: Path) -> Renamed | None:
    """What became of an old name; None for a path that never was one."""
    known = config.key_at(path)
    if known is None or not known.declared.renamed or known.replaced_by is None:
        return None
    since, instead = Version.parse(known.declared.renamed), known.declared.instead
    if instead is not None:
        return Renamed(since, None, instead)
    new = tuple(known.replaced_by.split("."))
    return Renamed(since, new, f'write "{new[-1]}"')


def is_comment(name: str) -> bool:
    """Whether a key is written as a remark rather than as a setting."""
    return name.startswith(COMMENT_MARKS) or name.strip().lower() in COMMENT_WORDS


def _unknown(config: Context) -> Iterator[tuple[Path, SchemaError]]:
    """Keys without a meaning, outside the arguments of optimizer and scheduler."""
    for error in config.schema_errors:
        path = split(error.pointer)
        if error.kind is not ErrorKind.UNKNOWN or path[:2] in PARAMETERS:
            continue
        entry = config.reading.at(path)
        if entry is None or entry.outcome not in (Outcome.TWICE, Outcome.SWALLOWED):
            yield path, error


def _refused(config: Context, path: Path) -> bool:
    entry = config.reading.at(path)
    return entry is not None and entry.refused


def _consequence(config: Context, path: Path, otherwise: str) -> str:
    if _refused(config, path):
        return f"DeepSpeed {config.release} refuses unknown keys in {_dotted(path[:-1])}"
    return otherwise


UNKNOWN = "DSC021"


@rule(UNKNOWN, Effect.ALTERED, also=(Effect.REFUSED,), on_templates=True)
def unknown_key(config: Context) -> Iterator[Finding]:
    """No release of DeepSpeed, transformers or accelerate reads this key.

    At the top level and in blocks such as `optimizer`, `activation_checkpointing` or `aio`
    DeepSpeed ignores it without a word, so the run is not the one the file asks for; in
    `zero_optimization`, `fp16`, `bf16` and other checked blocks it stops.

    bad: {"train_batch_size": 8, "gradient_cliping": 0.5}
    good: {"train_batch_size": 8, "gradient_clipping": 0.5}
    """
    for path, error in _unknown(config):
        if is_comment(path[-1]) or path == ("$schema",) or renamed(config, path):
            continue
        if path not in NEVER_READ and valid_places(config, path):
            continue
        refused = _refused(config, path)
        meant = _meant(config, path, error)
        yield Finding(
            path=path,
            message=f'unknown key "{_dotted(path)}": ' + _consequence(config, path, IGNORED),
            help=meant.help,
            effect=Effect.REFUSED if refused else None,
            fix=_write_as(config, path, meant.new, refused and meant.surely) if meant.new else None,
            on_key=True,
        )


NO_IDEA = "delete it, or look for its new name"


class _Meant(NamedTuple):
    """What a key without a meaning was meant to be; ``surely`` where only its spelling is odd."""

    help: str
    new: Path | None = None
    surely: bool = False


def _meant(config: Context, path: Path, error: SchemaError) -> _Meant:
    handed_around = called(config, path)
    if handed_around is not None:
        return _Meant(handed_around.advice, handed_around.new, surely=True)
    if path in NEVER_READ:  # what it stands for is not in this release
        return _Meant("delete it")
    elsewhere = of_another_place(path)
    if elsewhere is not None:
        return _Meant(elsewhere)
    value = config.get(*path)
    alike = config.closest(path[-1], error.known)
    if alike and (
        not spelling.is_longer_or_shorter(path[-1], alike)
        or (path[-1] in alike[: len(path[-1])] and config.accepts((*path[:-1], alike), value))
    ):
        surely = spelling.same_letters(path[-1], alike)
        return _Meant(f'did you mean "{alike}"?', (*path[:-1], alike), surely)
    for place in spelling.flattened(path):
        if config.accepts(place, value):
            works = place[-1] == "enabled" or config.is_in_force(place[:-1])
            said = f'write it as "{place[-1]}" in {_dotted(place[:-1])}'
            return _Meant(said, place if works else None)
    return _Meant(NO_IDEA)


def valid_places(config: Context, path: Path) -> tuple[Path, ...]:
    """Where the key at ``path`` would be read: in blocks of which the file's types have it."""
    places = () if is_script_setting(path) else spelling.other_places(path)
    return tuple(
        place for place in places if place[:2] not in PARAMETERS or config.key_at(place) is not None
    )


@rule("DSC029", Effect.REFUSED, also=(Effect.INERT,), on_templates=True)
def documented_and_unread(config: Context) -> Iterator[Finding]:
    """DeepSpeed's documentation has this key, and no release reads it.

    In a checked block DeepSpeed stops at it; elsewhere it does nothing.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "grad_hooks": true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    """
    for path in config.paths:
        if config.is_unread(path) and not renamed(config, path):
            refused = _refused(config, path)
            yield Finding(
                path=path,
                message=f'"{_dotted(path)}" is documented, and no release of DeepSpeed reads it: '
                + _consequence(config, path, "it does nothing"),
                help="delete it",
                effect=None if refused else Effect.INERT,
                fix=as_fix(delete_entry(config.document, join(*path)), safe=refused),
                on_key=True,
            )


@rule("DSC022", Effect.ALTERED, also=(Effect.REFUSED,), on_templates=True)
def misplaced_key(config: Context) -> Iterator[Finding]:
    """The key exists, but in another block; here nothing reads it.

    bad: {"train_batch_size": 8, "reduce_bucket_size": 5e7}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e7}}
    """
    for path, error in _unknown(config):
        if is_comment(path[-1]) or path in NEVER_READ or renamed(config, path):
            continue
        places = valid_places(config, path)
        if not places:
            continue
        alike = config.closest(path[-1], error.known)
        hint = f', or did you mean "{alike}"?' if alike else ""
        named = " or ".join(_dotted(place[:-1]) or "the top level" for place in places)
        refused = _refused(config, path)
        is_home = len(places) == 1 and config.is_in_force(places[0][:-1])
        is_misspelt = alike is not None and spelling.same_letters(alike, path[-1])
        yield Finding(
            path=path,
            message=f'"{path[-1]}" belongs in {named}: '
            + _consequence(config, path, "here it is ignored without a word"),
            help=f"move it to {' or '.join(_dotted(place) for place in places)}{hint}",
            effect=Effect.REFUSED if refused else None,
            fix=_write_as(config, path, places[0], safe=False)
            if is_home and not is_misspelt
            else None,
            on_key=True,
        )


@rule("DSC023", Effect.ALTERED, also=(Effect.REFUSED,), on_templates=True)
def renamed_key(config: Context) -> Iterator[Finding]:
    """The key has a new name; the old one is ignored or refused.

    bad: {"train_batch_size": 8, "aio": {"thread_count": 4}}
    good: {"train_batch_size": 8, "aio": {"intra_op_parallelism": 4}}
    """
    for path in config.paths:
        old = renamed(config, path)
        if old is None or config.version < old.since:
            continue
        refused = _refused(config, path)
        what = f"DeepSpeed {config.release} refuses it" if refused else IGNORED
        yield Finding(
            path=path,
            message=f'"{_dotted(path)}" was renamed in DeepSpeed {old.since}: {what}',
            help=old.advice,
            effect=Effect.REFUSED if refused else None,
            fix=_write_as(config, path, old.new, refused) if old.new else None,
            on_key=True,
        )


def _write_as(config: Context, path: Path, new: Path, safe: bool) -> Fix | None:
    """The fix that gives an entry another name or place; None where its value does not fit."""
    if config.has(*new) or not config.accepts(new, config.get(*path)):
        return None
    pointer = join(*path)
    if new[:-1] == path[:-1]:
        edits = rename_key(config.document, pointer, new[-1])
    else:
        edits = move_entry(config.document, pointer, join(*new[:-1]), new[-1])
    return as_fix(edits, safe=safe)


class Deprecated(NamedTuple):
    """What a deprecated key does today."""

    consequence: str
    new: str | None = None
    """What it is called now, where a name says the same thing."""
    idle: str | None = None
    """What it does where it is off, of a switch that became a block with a device."""
    works: bool = True
    """False where no value does anything any more."""


DEPRECATED: Mapping[Path, Deprecated] = {
    (*ZERO, "cpu_offload"): Deprecated(
        'DeepSpeed takes it for "offload_optimizer": {"device": "cpu"}',
        "offload_optimizer",
        "it does nothing",
    ),
    (*ZERO, "cpu_offload_param"): Deprecated(
        'DeepSpeed takes it for "offload_param": {"device": "cpu"}',
        "offload_param",
        "it does nothing",
    ),
    (*ZERO, "cpu_offload_use_pin_memory"): Deprecated("its value is dropped", works=False),
    (*ZERO, "stage3_gather_fp16_weights_on_model_save"): Deprecated(
        "DeepSpeed takes it for stage3_gather_16bit_weights_on_model_save",
        "stage3_gather_16bit_weights_on_model_save",
    ),
    (*ZERO, "elastic_checkpoint"): Deprecated(
        "universal checkpoints replaced it, and at stage 3, where DeepSpeed logs that elastic "
        "checkpointing is deprecated, it does nothing"
    ),
    ("bfloat16",): Deprecated("it is read only where bf16 is absent", "bf16"),
}


@rule(
    "DSC024",
    Effect.DEPRECATED,
    also=(Effect.INERT,),
    triggers="zero_optimization bfloat16",
    on_templates=True,
)
def deprecated_key(config: Context) -> Iterator[Finding]:
    """The key is on its way out; DeepSpeed says so in its log.

    Most still work. Where the value does nothing any more (`cpu_offload: false`), the effect is
    `inert`.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "cpu_offload": true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device":
        "cpu"}}}
    """
    for path, key in config.keys:
        since = key.declared.deprecated
        if since is None or config.version < Version.parse(since):
            continue
        value, old = config.get(*path), DEPRECATED[path]
        edits = _as_today(config, path, old, value)
        is_off = old.idle is not None and not value
        says = old.idle if is_off else old.consequence
        yield Finding(
            path=path,
            message=f'"{_dotted(path)}" is deprecated: {says}',
            help="delete it" if is_off else key.declared.instead,
            effect=Effect.INERT if is_off or not old.works else None,
            fix=Fix(Applicability.SAFE, edits) if edits else None,
            on_key=True,
        )


def _as_today(config: Context, path: Path, old: Deprecated, value: Any) -> tuple[Edit, ...]:
    """What writes a deprecated key the new way, where the file has that not as well."""
    document, pointer, block = config.document, join(*path), path[:-1]
    today = config.key_at((*block, old.new)) if old.new else None
    if today is None or any(config.has(*block, name) for name in (today.name, *today.aliases)):
        return ()
    renaming = rename_key(document, pointer, today.name)
    if old.idle is None:
        return renaming
    if value is True:
        return (*renaming, *replace_value(document, pointer, {"device": "cpu"}))
    return delete_entry(document, pointer) if value is False or value is None else ()


@rule("DSC025", Effect.REFUSED, triggers="zero_optimization tensor_parallel", on_templates=True)
def key_under_two_names(config: Context) -> Iterator[Finding]:
    """A key is given under both of its names; DeepSpeed calls the short one an extra input.

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
                "DeepSpeed stops and calls the first an extra input",
                help=f'keep "{entry.field.name}"',
                on_key=True,
            )


@rule("DSC026", Effect.REFUSED, triggers="zero_optimization")
def deprecated_and_replacement(config: Context) -> Iterator[Finding]:
    """A deprecated key stands beside the key that replaced it; DeepSpeed stops.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "cpu_offload": true,
        "offload_optimizer": {"device": "cpu"}}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device":
        "cpu"}}}
    """
    for violation in config.violations("deprecated-and-replacement"):
        yield Finding(
            path=violation.path,
            message=f"{violation.said}: DeepSpeed stops",
            help=f'delete "{violation.path[-1]}"',
            fix=as_fix(delete_entry(config.document, join(*violation.path))),
            on_key=True,
        )


@rule("DSC027", Effect.REFUSED, also=(Effect.NOTE,), on_templates=True)
def comment_key(config: Context) -> Iterator[Finding]:
    """A key that is a remark.

    At the top level and in blocks that ignore unknown keys it does no harm. In a checked
    block DeepSpeed refuses it, and among the arguments of an optimizer or scheduler it
    reaches the constructor, which stops with a TypeError.

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
        where = _dotted(path[:-1]) or "the top level"
        what = "the constructor refuses" if argument else f"DeepSpeed {config.release} refuses"
        yield Finding(
            path=path,
            message=f'"{path[-1]}" is a comment in {where}, where {what} it'
            if refused
            else f'"{path[-1]}" is a comment; {where} tolerates it',
            help="move the remark to the top level, or into a // comment" if refused else None,
            effect=None if refused else Effect.NOTE,
            late=argument,
            fix=as_fix(delete_entry(config.document, error.pointer)) if refused else None,
            on_key=True,
        )


@rule("DSC028", Effect.INERT, applies_to=reaches_deepspeed)
def swallowed_key(config: Context) -> Iterator[Finding]:
    """`strict` in a checked block is an argument of DeepSpeed's own model class.

    It does not end up in the config; true means that "auto" is not dropped but refused.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "strict": true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    """
    for path, entry in config.reading.entries.items():
        if entry.outcome is Outcome.SWALLOWED:
            yield Finding(
                path=path,
                message=f'"{_dotted(path)}" is taken by DeepSpeed for itself and sets nothing',
                help="delete it",
                on_key=True,
            )
