"""Declaration of keys: a pydantic field plus metadata."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, ClassVar, Concatenate, NamedTuple, ParamSpec

from pydantic import AliasChoices, BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from dsconfig.schema.markers import Bounds
from dsconfig.schema.value_checks import ValueCheck
from dsconfig.schema.version import Version

REQUIRED: Any = ...
"""Default of a required key."""

DECLARATION_MARK, HISTORY_MARK = "x-declaration", "x-history"
"""Keys under which metadata is added to pydantic's JSON Schema output."""

P = ParamSpec("P")


TRUE_WORDS = frozenset(("1", "on", "t", "true", "y", "yes"))
FALSE_WORDS = frozenset(("0", "off", "f", "false", "n", "no"))
"""Strings that pydantic's lax mode accepts as a bool (case-insensitive)."""


class ReadAs(StrEnum):
    """Type as which DeepSpeed's model reads a field; usually follows from the annotation."""

    BOOL = "true or false"
    INT = "an integer"
    FLOAT = "a number"
    STR = "a string"
    PATH = "a path"
    STAGE = "0, 1, 2 or 3"
    CHOICE = "one of its choices"
    LIST = "a list"
    TEXT_OR_STRINGS = "a string or a list of strings"
    PASSES = 'a list of "z1", "z3", "autosp", "autotp"'
    DICT = "an object"
    BLOCK = "an object "
    """An object with its own model."""
    TEXT_OR_INT = "a string or an integer"
    LOSS_SCALE = "a number of at least 0"
    SCALE_INTEGER = "an integer "
    DTYPE = "a torch.dtype object, which a file cannot contain"
    ANY = "any value"


class Declaration(NamedTuple):
    """Metadata of a key besides type, default and doc; versions are strings.

    Stored in ``FieldInfo.json_schema_extra``, which pydantic calls.
    """

    unit: str | None = None
    since: str | None = None
    until: str | None = None
    """First and last release that read it; default: those of its block, or the release before
    ``refused`` or ``renamed``."""
    gap: tuple[str, str] | None = None
    """First and last of the releases in between that did not read it."""
    was: Mapping[str, Any] = {}
    bounds_was: Mapping[str, Bounds] = {}
    """Default or bounds before the release that changed them."""
    checked: str | None = None
    """First release that rejects a wrong type, if the block has no model."""
    read_as: ReadAs | None = None
    """Type as which DeepSpeed's model reads it, if it differs from the annotation."""
    takes_null: bool = False
    """Whether DeepSpeed's model accepts null although the annotation does not."""
    checks: tuple[ValueCheck, ...] = ()
    """Value checks of DeepSpeed for keys without a model."""
    stages: tuple[int, ...] = ()
    """ZeRO stages at which it has an effect."""
    refused: str | None = None
    """First release that rejects the key."""
    renamed: str | None = None
    """First release that no longer reads this name."""
    deprecated: str | None = None
    """First release that warns about it."""
    replaced_by: str | None = None
    instead: str | None = None
    """Suggested change, if it is more than writing ``replaced_by``."""
    in_engine: bool = False
    """Whether dsengine supports it although DeepSpeed removed it."""
    required_when: str | None = None
    """Sibling switch that makes the key required."""
    spelled: tuple[str, ...] = ()
    """All accepted names, the preferred one first; empty if there is only one."""
    status: str | None = None
    memory: str | None = None
    see: tuple[str, ...] = ()
    taken_by: tuple[str, ...] = ()
    """Optimizer classes that accept the argument, if not all of them do."""

    @property
    def aliases(self) -> tuple[str, ...]:
        return self.spelled[1:]

    def __hash__(self) -> int:
        """Hash by identity: pydantic puts it in sets, and mappings are not hashable."""
        return id(self)

    def __call__(self, schema: dict[str, Any]) -> None:
        """Add this object to the JSON Schema of the key, for later processing."""
        schema[DECLARATION_MARK] = self


def _declaring(declaration: Callable[P, Declaration]) -> Callable[Concatenate[Any, str, P], Any]:
    def key(default: Any, doc: str, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        declared = declaration(*args, **kwargs)
        ended = declared.refused or declared.renamed
        if ended and not declared.until:
            minor, _, patch = ended.rpartition(".")
            declared = declared._replace(until=f"{minor}.{int(patch) - 1}")
        alias = AliasChoices(*declared.spelled) if declared.spelled else None
        # Equivalent to `Field`, but faster: hundreds of keys load at start-up.
        return FieldInfo.from_field(
            default, description=doc, validation_alias=alias, json_schema_extra=declared
        )

    return key


key = _declaring(Declaration)
"""Declare a key: default, one-line doc, and fields of :class:`Declaration`."""


def declaration_of(field: FieldInfo) -> Declaration:
    """Return the declaration of a field; an empty one for plain pydantic fields."""
    extra = field.json_schema_extra
    return extra if isinstance(extra, Declaration) else Declaration()


class KeyHistory(NamedTuple):
    """Releases that read a block, and that reject unknown keys in it."""

    since: str = "0.3.0"
    until: str | None = None
    closed: tuple[tuple[str, str | None], ...] = ()
    status: str | None = None
    arguments: bool = False
    """Whether the keys are keyword arguments, which excludes unknown ones."""
    nested: bool = False
    """Whether the block is a field of another DeepSpeed model, where "auto" is not a block."""
    auto_ignored_since: str = "0.3.0"
    """First release that drops keys with the value "auto" before validation."""

    @property
    def spans(self) -> tuple[tuple[Version, Version | None], ...]:
        """``closed``, parsed."""
        return tuple(
            (Version.parse(start), Version.parse(end) if end else None)
            for start, end in self.closed
        )

    def is_closed_at(self, version: Version) -> bool:
        """Return whether a release rejects unknown keys in the block."""
        return any(
            start <= version and (end is None or version <= end) for start, end in self.spans
        )

    def ignores_auto_at(self, version: Version) -> bool:
        """Return whether a release drops keys with the value "auto" before validation."""
        return Version.parse(self.auto_ignored_since) <= version


def _mark_history(schema: dict[str, Any], block: type["Block"]) -> None:
    schema[HISTORY_MARK] = block.history


class Block(BaseModel):
    """An object of a ds_config with a fixed set of keys.

    ``class Comet(Block, since="0.14.3", closed="0.14.3")``: read since 0.14.3, which also rejects
    unknown keys and wrong types.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        defer_build=True,
        frozen=True,
        json_schema_extra=_mark_history,
        protected_namespaces=(),  # no key clashes with pydantic's methods; skips the check
    )
    history: ClassVar[KeyHistory] = KeyHistory()

    def __init_subclass__(
        cls,
        *,
        since: str | None = None,
        until: str | None = None,
        closed: str | tuple[tuple[str, str | None], ...] = (),
        status: str | None = None,
        arguments: bool = False,
        nested: bool = False,
        auto_ignored_since: str | None = None,
        **config: Any,
    ) -> None:
        super().__init_subclass__(**config)
        intervals = ((closed, None),) if isinstance(closed, str) else closed
        inherited = cls.history
        cls.history = KeyHistory(
            since=since or inherited.since,
            until=until or inherited.until,
            closed=intervals or inherited.closed,
            status=status or inherited.status,
            arguments=arguments or inherited.arguments,
            nested=nested or inherited.nested,
            auto_ignored_since=auto_ignored_since or inherited.auto_ignored_since,
        )
