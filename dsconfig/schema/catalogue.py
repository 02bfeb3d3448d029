"""Keys of a ds_config as plain data, derived from the declarations of blocks.

Looking up a key imports only the blocks on its path and builds no validators.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar, cast

from pydantic_core import PydanticUndefined

from dsconfig.schema.auto import FILLED
from dsconfig.schema.config import DSConfig
from dsconfig.schema.declare import Block, Declaration, KeyHistory, ReadAs, declaration_of
from dsconfig.schema.lazy import Lazy, Variants
from dsconfig.schema.markers import Bounds
from dsconfig.schema.paths import ROOT, KeyPath
from dsconfig.schema.shape import Shape, describe, shape_of
from dsconfig.schema.value_checks import ValueCheck
from dsconfig.schema.version import Version

T = TypeVar("T")


class KeyStatus(StrEnum):
    LIVE = "live"
    """DeepSpeed's newest release reads it."""
    REMOVED = "removed"
    """Read by an older release, but not by the newest."""
    EXTERNAL = "external"
    """Read by another program."""
    DOCS_ONLY = "docs_only"
    """Documented but not read by any release."""


class Key:
    """A key, derived from the field that declares it.

    ``key_path``: ``*`` is a user-defined name and ``[]`` a list item; ``path`` is the same, dotted.
    ``since``, ``until``: first and last release that read it; ``until`` is None if still read.
    ``checked_since``: first release that rejects a wrong type while parsing.
    ``required_when``: sibling switch that makes it required.
    ``refused_from``: first release that rejects its presence.
    ``applies_to``: optimizers or schedulers that accept it, if the block depends on ``type``.
    """

    def __init__(
        self, name: str, owner: type[Block], owners: tuple[type[Block], ...], parent: "Key | None"
    ) -> None:
        self._field = field = owner.model_fields[name]
        self.declared = declared = declaration_of(field)
        history = owner.history
        if parent is not None and isinstance(parent.shape.block, Variants):
            # ``since`` of these blocks is that of the optimizer type; arguments declare their own.
            history = history._replace(since=str(parent.since), until=None)
        self.name = name
        self.key_path = _path(name, parent)
        self.doc = field.description or ""
        self.required = field.default is PydanticUndefined
        self.default: Any = None if self.required else field.default
        self.required_when = declared.required_when
        self.unit = declared.unit
        self.status = _status(declared, history)
        self.since = _since(declared, history, parent, self.status)
        self.until = _version(declared.until or history.until) if self.since else None
        self.gap = _gap(declared, parent, self.since, self.until)
        self.refused_from = _version(declared.refused) or (parent.refused_from if parent else None)
        self.checked_since = _checked_since(declared, history)
        self.aliases = declared.aliases
        self.replaced_by = declared.replaced_by
        blocks = (block for block in owners if name in block.model_fields)
        self.applies_to = tuple(block.__name__ for block in blocks) if len(owners) > 1 else ()
        self.memory = declared.memory
        self.related = declared.see
        self.earlier_defaults: tuple[tuple[Version, Any], ...] = _changes(declared.was)
        self.earlier_bounds: tuple[tuple[Version, Bounds], ...] = _changes(declared.bounds_was)

    def __repr__(self) -> str:
        return f"Key({self.path})"

    @cached_property
    def path(self) -> str:
        return self.key_path.dotted.replace(".[]", "[]")

    @property
    def auto_filled_by(self) -> tuple[str, ...]:
        """Hugging Face programs that replace "auto"."""
        filled = FILLED.get(self.key_path)
        return filled.programs if filled else ()

    @cached_property
    def shape(self) -> Shape:
        return shape_of(self._field.annotation, tuple(self._field.metadata))

    @property
    def type(self) -> str:
        return f"{self.shape.type}|null" if self.shape.nullable else self.shape.type

    @property
    def choices(self) -> tuple[Any, ...]:
        return self.shape.choices

    @property
    def bounds(self) -> Bounds:
        return self.shape.bounds

    @property
    def expected(self) -> str:
        """Description of valid values."""
        return describe(self.shape)

    @property
    def is_block(self) -> bool:
        return self.shape.block is not None

    @property
    def means_auto(self) -> bool:
        """Whether DeepSpeed itself gives "auto" a meaning."""
        return self.shape.native_auto or "auto" in self.choices

    def failed_check(self, value: Any, version: Version) -> ValueCheck | None:
        """Return the first value check of a release that a value fails, or None."""
        if not self.read_at(version):
            return None
        for check in self.declared.checks:
            if check.applies_at(version) and not check.accepts(value):
                return check
        return None

    @cached_property
    def model_name(self) -> str:
        """Name of the field in DeepSpeed's model, where other names are aliases."""
        return self.aliases[-1] if self.aliases else self.name

    @property
    def takes_null(self) -> bool:
        """Whether DeepSpeed's model accepts null."""
        return self.declared.takes_null or self.shape.nullable

    @cached_property
    def kind(self) -> ReadAs:
        """Type as which DeepSpeed's model reads it."""
        return self.declared.read_as or _kind_of(self.shape)

    def read_at(self, version: Version) -> bool:
        """Return whether a DeepSpeed release reads the key."""
        if self.since is None or version < self.since:
            return False
        if self.until is not None and version > self.until:
            return False
        return self.gap is None or not self.gap[0] <= version <= self.gap[1]

    def default_at(self, version: Version) -> Any:
        """Return the default in a release."""
        return _before(self.earlier_defaults, version, self.default)

    def bounds_at(self, version: Version) -> Bounds:
        """Return the bounds in a release."""
        return _before(self.earlier_bounds, version, self.bounds)

    def checked_at(self, version: Version) -> bool:
        """Return whether a release rejects a wrong type while parsing."""
        return self.checked_since is not None and version >= self.checked_since


_key = cache(Key)
"""Cached constructor; ``owners`` are all blocks possible at this path."""

_KIND_OF_TYPE = {
    "boolean": ReadAs.BOOL,
    "integer": ReadAs.INT,
    "number": ReadAs.FLOAT,
    "string": ReadAs.STR,
    "object": ReadAs.DICT,
    "torch.dtype": ReadAs.DTYPE,
}


def _kind_of(shape: Shape) -> ReadAs:
    if shape.block is not None and not shape.container:
        owners = blocks_of(shape)
        return ReadAs.BLOCK if any(owner.history.closed for owner in owners) else ReadAs.DICT
    if shape.type.startswith("array"):
        return ReadAs.LIST
    if shape.choices and not shape.container:
        return ReadAs.STAGE if shape.type == "integer" else ReadAs.CHOICE
    if shape.native_auto:
        return ReadAs.TEXT_OR_INT
    return _KIND_OF_TYPE.get(shape.type, ReadAs.ANY)


def _before(changes: Sequence[tuple[Version, T]], version: Version, now: T) -> T:
    return next((value for changed, value in changes if version < changed), now)


def key(path: str, *, of_type: str | None = None) -> Key | None:
    """Return the key at a dotted path, or None.

    Aliases are resolved; a user-defined name may be written as itself or ``*``, a list item as
    ``[]`` or a number. ``of_type`` selects the optimizer or scheduler whose arguments are meant;
    without it the first one with that argument is used.
    """
    return find(KeyPath.parse(path.replace("[]", ".[]")), of_type=of_type)


def find(parts: Sequence[str], *, of_type: str | None = None) -> Key | None:
    """Return the key at a path given in parts, or None; see :func:`key`."""
    owners, parent, rest = (DSConfig,), None, list(parts)
    current: Key | None = None
    while rest:
        current = _named(rest.pop(0), owners, parent)
        if current is None:
            return None
        if current.shape.container and current.is_block and rest:
            rest.pop(0)
        # Load a block only to look inside it.
        owners, parent = blocks_of(current.shape, of_type) if rest else (), current
    return current


def keys() -> Iterator[Key]:
    """Yield all keys, parents before children, in order of declaration."""
    return _below((DSConfig,), None)


def _below(owners: tuple[type[Block], ...], parent: Key | None) -> Iterator[Key]:
    for key in dict.fromkeys(named(owners, parent).values()):
        yield key
        yield from _below(blocks_of(key.shape), key)


def blocks_of(shape: Shape, of_type: str | None = None) -> tuple[type[Block], ...]:
    """Return the blocks of a shape; several if the block depends on ``type``."""
    match shape.block:
        case None:
            return ()
        case Lazy():
            return (shape.block.load(),)
        case Variants():
            if of_type is not None:
                branch = shape.block.find(of_type)
                return (branch.load(),) if branch else ()
            return tuple(branch.load() for branch in shape.block.blocks.values())
        case block:
            return (block,)


@lru_cache(maxsize=512)
def named(owners: tuple[type[Block], ...], parent: Key | None) -> Mapping[str, Key]:
    """Return the keys of blocks by name and alias; earlier blocks take precedence."""
    keys_by_name: dict[str, Key] = {}
    for owner in owners:
        for name, field_name in _fields_by_name(owner).items():
            if name not in keys_by_name:
                keys_by_name[name] = _key(field_name, owner, owners, parent)
    return keys_by_name


@lru_cache(maxsize=512)
def live_names(owners: tuple[type[Block], ...], parent: Key | None) -> tuple[str, ...]:
    """Return names and aliases of the keys that the newest DeepSpeed release reads."""
    keys_by_name = named(owners, parent)
    return tuple(name for name, key in keys_by_name.items() if key.status is KeyStatus.LIVE)


def _named(name: str, owners: tuple[type[Block], ...], parent: Key | None) -> Key | None:
    """Return ``named(owners, parent).get(name)`` without building the other keys."""
    for owner in owners:
        field_name = _fields_by_name(owner).get(name)
        if field_name is not None:
            return _key(field_name, owner, owners, parent)
    return None


@cache
def _fields_by_name(owner: type[Block]) -> Mapping[str, str]:
    """Return the field names of a block by name and alias."""
    names: dict[str, str] = {}
    for field_name, field in owner.model_fields.items():
        names |= dict.fromkeys((field_name, *declaration_of(field).aliases), field_name)
    return names


class BlockKey(NamedTuple):
    """A block of a config."""

    path: KeyPath
    key: Key
    owner: type[Block]
    nested: bool
    """Whether it is a field of another DeepSpeed model."""


def blocks_in(config: Mapping[str, Any]) -> Iterator[tuple[BlockKey, Any]]:
    """Yield the blocks of a config with their content, outer ones first."""
    for path, key, owner, content in _keys_below(config, KeyPath(), DSConfig, None):
        if _is_plain_block(key):
            (inner,) = blocks_of(key.shape)
            nested = inner.history.nested or bool(len(path) > 1 and owner.history.closed)
            yield BlockKey(path, key, inner, nested), content


def keys_in(config: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Key]]:
    """Yield the declared keys of a config, outer ones first.

    Content of user-defined names, lists and arguments is skipped.
    """
    for path, key, _, _ in _keys_below(config, KeyPath(), DSConfig, None):
        yield path, key


def _is_plain_block(key: Key) -> bool:
    return not key.shape.container and isinstance(key.shape.block, (Lazy, type))


def _keys_below(
    config: Mapping[str, Any], path: KeyPath, owner: type[Block], parent: Key | None
) -> Iterator[tuple[KeyPath, Key, type[Block], Any]]:
    for name, content in config.items():
        entry = _named(name, (owner,), parent)
        if entry is None:
            continue
        yield path / name, entry, owner, content
        if isinstance(content, dict) and _is_plain_block(entry):
            (inner,) = blocks_of(entry.shape)
            yield from _keys_below(cast(Mapping[str, Any], content), path / name, inner, entry)


@lru_cache(maxsize=512)
def block_at(path: tuple[str, ...]) -> BlockKey | None:
    """Return the block at a path, or None."""
    config: dict[str, Any] = {}
    for name in reversed(path):
        config = {name: config}
    return next((block for block, _ in blocks_in(config) if block.path == path), None)


def field_of(block: BlockKey, name: str) -> Key | None:
    """Return the key of a block by any of its names."""
    return _named(name, (block.owner,), block.key)


def _path(name: str, parent: Key | None) -> KeyPath:
    if parent is None:
        return ROOT / name
    item = parent.shape.container
    return (parent.key_path / item if item else parent.key_path) / name


def _status(declared: Declaration, history: KeyHistory) -> KeyStatus:
    if status := declared.status or history.status:
        return KeyStatus(status)
    return KeyStatus.REMOVED if declared.until or history.until else KeyStatus.LIVE


def _gap(
    declared: Declaration, parent: Key | None, since: Version | None, until: Version | None
) -> tuple[Version, Version] | None:
    """Return the declared gap, or that of the enclosing block if it applies to the key."""
    if declared.gap is not None:
        return Version.parse(declared.gap[0]), Version.parse(declared.gap[1])
    if parent is None or parent.gap is None or since is None:
        return None
    start, end = parent.gap
    return parent.gap if since < start and (until is None or until > end) else None


def _since(
    declared: Declaration, history: KeyHistory, parent: Key | None, status: KeyStatus
) -> Version | None:
    if declared.since:
        return Version.parse(declared.since)
    if declared.status or status in (KeyStatus.EXTERNAL, KeyStatus.DOCS_ONLY):
        return None  # no release of DeepSpeed reads it
    is_read = parent is None or parent.since is not None
    return Version.parse(history.since) if is_read else None


def _checked_since(declared: Declaration, history: KeyHistory) -> Version | None:
    if declared.checked:
        return Version.parse(declared.checked)
    if not history.closed:
        return None
    start = Version.parse(history.closed[0][0])
    return max(start, Version.parse(declared.since)) if declared.since else start


def _changes(declared: Mapping[str, T]) -> tuple[tuple[Version, T], ...]:
    return tuple((Version.parse(version), value) for version, value in declared.items())


def _version(text: str | None) -> Version | None:
    return Version.parse(text) if text else None


def strict_since(path: str) -> tuple[tuple[Version, Version | None], ...]:
    """Return the spans of releases that reject unknown keys in a block (dotted path).

    The end of a span is its last release, or None. The root is ``""``.
    Raises KeyError if there is no such block.
    """
    return _owner(path).history.spans


def strict_at(path: str, version: Version) -> bool:
    """Return whether a DeepSpeed release rejects unknown keys in the block."""
    return _owner(path).history.is_closed_at(version)


def _owner(path: str) -> type[Block]:
    if not path:
        return DSConfig
    block = key(path)
    owners = blocks_of(block.shape) if block else ()
    if not owners:
        raise KeyError(f"{path!r} is not a block of a ds_config")
    return owners[0]
