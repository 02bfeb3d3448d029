"""Every key of a ds_config as plain data, read off the declarations of its block.

Asking for one key imports only the blocks on the way to it, and builds no validator.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, lru_cache
from typing import Any, TypeVar

from pydantic_core import PydanticUndefined

from dsconfig.schema.config import DSConfig
from dsconfig.schema.declare import Block, Facts, Life, facts_of
from dsconfig.schema.lazy import Lazy, Variants
from dsconfig.schema.markers import Bounds
from dsconfig.schema.shape import Shape, in_words, shape_of
from dsconfig.schema.version import Version

T = TypeVar("T")


class Status(StrEnum):
    LIVE = "live"
    """DeepSpeed's newest release reads it."""
    REMOVED = "removed"
    """Some release read it; the newest does not."""
    EXTERNAL = "external"
    """Another program reads it."""
    DOCS_ONLY = "docs_only"
    """Documented, and read by no release."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Key:
    """One key.

    ``path`` is dotted; ``*`` stands for a name the user chooses and ``[]`` for a list item.
    ``since`` and ``until`` are the first and last release that read it; ``until`` is None
    for one still read. ``checked_since`` is the first release that refuses a wrong type
    when it parses the file. ``required_when`` is the switch beside it that makes it necessary.
    ``refused_from``: from that release its mere presence is an error.
    """

    path: str
    shape: Shape
    doc: str
    default: Any = None
    required: bool = False
    required_when: str | None = None
    unit: str | None = None
    since: Version | None = None
    until: Version | None = None
    gap: tuple[Version, Version] | None = None
    refused_from: Version | None = None
    checked_since: Version | None = None
    status: Status = Status.LIVE
    aliases: tuple[str, ...] = ()
    replaced_by: str | None = None
    auto_filled_by: tuple[str, ...] = ()
    applies_to: tuple[str, ...] = ()
    memory: str | None = None
    related: tuple[str, ...] = ()
    earlier_defaults: tuple[tuple[Version, Any], ...] = ()
    earlier_bounds: tuple[tuple[Version, Bounds], ...] = field(default=())

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

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
        """What a value must be, as a phrase."""
        return in_words(self.shape)

    @property
    def is_block(self) -> bool:
        return self.shape.block is not None

    def read_at(self, version: Version) -> bool:
        """Whether that release of DeepSpeed reads the key."""
        if self.since is None or version < self.since:
            return False
        if self.until is not None and version > self.until:
            return False
        return self.gap is None or not self.gap[0] <= version <= self.gap[1]

    def default_at(self, version: Version) -> Any:
        """The default in that release."""
        return _before(self.earlier_defaults, version, self.default)

    def bounds_at(self, version: Version) -> Bounds:
        """The bounds in that release."""
        return _before(self.earlier_bounds, version, self.bounds)

    def checked_at(self, version: Version) -> bool:
        """Whether that release refuses a value of a wrong type while parsing."""
        return self.checked_since is not None and version >= self.checked_since


def _before(changes: Sequence[tuple[Version, T]], version: Version, now: T) -> T:
    return next((value for changed, value in changes if version < changed), now)


def key(path: str, *, of_type: str | None = None) -> Key | None:
    """The key at a dotted path, None where there is none.

    An alias leads to its key; a name of the user's choosing or ``*`` may stand for itself,
    ``[]`` or a number for a list item. ``of_type`` picks the optimizer or scheduler whose
    arguments are meant; without it the first that has the argument answers.
    """
    return find(path.replace("[]", ".[]").split("."), of_type=of_type)


def find(parts: Sequence[str], *, of_type: str | None = None) -> Key | None:
    """``key`` for a path that is already split, as that of a JSON Pointer."""
    owners, parent, rest = (DSConfig,), None, list(parts)
    found: Key | None = None
    while rest:
        found = _named(rest.pop(0), owners, parent)
        if found is None:
            return None
        if found.shape.container and found.is_block and rest:
            rest.pop(0)
        # A block is loaded only to look further down in it.
        owners, parent = blocks_of(found.shape, of_type) if rest else (), found
    return found


def keys() -> Iterator[Key]:
    """All keys, parents before children, in the order of declaration."""
    yield from _below((DSConfig,), None)


def _below(owners: tuple[type[Block], ...], parent: Key | None) -> Iterator[Key]:
    for found in dict.fromkeys(named(owners, parent).values()):
        yield found
        yield from _below(blocks_of(found.shape), found)


def blocks_of(shape: Shape, of_type: str | None = None) -> tuple[type[Block], ...]:
    """The blocks a value of this shape may be; several where its ``type`` decides."""
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
    """The keys of a block by name and alias; of the first of several blocks that has it."""
    found: dict[str, Key] = {}
    for owner in owners:
        for name, field_name in _fields_by_name(owner).items():
            if name not in found:
                found[name] = _key(field_name, owner, owners, parent)
    return found


@lru_cache(maxsize=512)
def live_names(owners: tuple[type[Block], ...], parent: Key | None) -> tuple[str, ...]:
    """The names and aliases of the keys of a block that DeepSpeed's newest release reads."""
    found = named(owners, parent)
    return tuple(name for name, one in found.items() if one.status is Status.LIVE)


def _named(name: str, owners: tuple[type[Block], ...], parent: Key | None) -> Key | None:
    """``named(owners, parent).get(name)``, without the keys that nobody asks for."""
    for owner in owners:
        field_name = _fields_by_name(owner).get(name)
        if field_name is not None:
            return _key(field_name, owner, owners, parent)
    return None


@cache
def _fields_by_name(owner: type[Block]) -> Mapping[str, str]:
    """The fields of a block under all names that a file may use."""
    found: dict[str, str] = {}
    for field_name, declared in owner.model_fields.items():
        found |= dict.fromkeys((field_name, *facts_of(declared).aliases), field_name)
    return found


def _types_with(owners: tuple[type[Block], ...], name: str) -> tuple[str, ...]:
    return tuple(owner.__name__ for owner in owners if name in owner.model_fields)


@cache
def _key(name: str, owner: type[Block], owners: tuple[type[Block], ...], parent: Key | None) -> Key:
    """The key that a field declares; ``owners`` are all blocks that may stand in its place."""
    declared, life = owner.model_fields[name], owner.life
    types = _types_with(owners, name) if len(owners) > 1 else ()
    facts = facts_of(declared)
    if parent is not None and isinstance(parent.shape.block, Variants):
        # The life of these blocks is that of the optimizer's name; its arguments say their own.
        life = life._replace(since=str(parent.since), until=None)
    shape = shape_of(declared.annotation, tuple(declared.metadata))
    status = _status(facts, life)
    required = declared.default is PydanticUndefined
    since = _since(facts, life, parent, status)
    until = _version(facts.until or life.until) if since else None
    return Key(
        path=_path(name, parent),
        shape=shape,
        doc=declared.description or "",
        default=None if required else declared.default,
        required=required,
        required_when=facts.required_when,
        unit=facts.unit,
        since=since,
        until=until,
        gap=_interval(facts.gap) or _gap_of(parent, since, until),
        refused_from=_version(facts.refused) or (parent.refused_from if parent else None),
        checked_since=_checked_since(facts, life),
        status=status,
        aliases=facts.aliases,
        replaced_by=facts.replaced_by,
        auto_filled_by=facts.auto,
        applies_to=types,
        memory=facts.memory,
        related=facts.see,
        earlier_defaults=_changes(facts.was),
        earlier_bounds=_changes(facts.bounds_was),
    )


def _path(name: str, parent: Key | None) -> str:
    if parent is None:
        return name
    step = {"*": ".*", "[]": "[]"}.get(parent.shape.container, "")
    return f"{parent.path}{step}.{name}"


def _status(facts: Facts, life: Life) -> Status:
    declared = facts.status or life.status
    if declared:
        return Status(declared)
    return Status.REMOVED if facts.until or life.until else Status.LIVE


def _gap_of(
    parent: Key | None, since: Version | None, until: Version | None
) -> tuple[Version, Version] | None:
    """The gap of the block around a key that was there before and after it."""
    if parent is None or parent.gap is None or since is None:
        return None
    start, end = parent.gap
    return parent.gap if since < start and (until is None or until > end) else None


def _since(facts: Facts, life: Life, parent: Key | None, status: Status) -> Version | None:
    if facts.since:
        return Version.parse(facts.since)
    if facts.status or status in (Status.EXTERNAL, Status.DOCS_ONLY):
        return None  # declared so because no release of DeepSpeed read it
    if parent is None:
        return Version.parse(life.since)
    return Version.parse(life.since) if parent.since is not None else None


def _checked_since(facts: Facts, life: Life) -> Version | None:
    if facts.checked:
        return Version.parse(facts.checked)
    if not life.closed:
        return None
    start = Version.parse(life.closed[0][0])
    return max(start, Version.parse(facts.since)) if facts.since else start


def _changes(declared: Sequence[tuple[str, T]]) -> tuple[tuple[Version, T], ...]:
    return tuple((Version.parse(version), value) for version, value in declared)


def _version(text: str | None) -> Version | None:
    return Version.parse(text) if text else None


def _interval(pair: tuple[str, str] | None) -> tuple[Version, Version] | None:
    return (Version.parse(pair[0]), Version.parse(pair[1])) if pair else None


def strict_since(path: str) -> tuple[tuple[Version, Version | None], ...]:
    """The spans of releases that refuse unknown keys in the block at a dotted path.

    The end of a span is its last release, None where it lasts. The root is ``""``.
    Raises KeyError when there is no such block.
    """
    owner = _owner(path)
    return tuple((Version.parse(start), _version(end)) for start, end in owner.life.closed)


def strict_at(path: str, version: Version) -> bool:
    """Whether that release of DeepSpeed refuses unknown keys in the block."""
    return any(
        start <= version and (end is None or version <= end) for start, end in strict_since(path)
    )


def _owner(path: str) -> type[Block]:
    if not path:
        return DSConfig
    found = key(path)
    owners = blocks_of(found.shape) if found else ()
    if not owners:
        raise KeyError(f"{path!r} is not a block of a ds_config")
    return owners[0]
