"""How a block declares its keys: a pydantic field, and the facts that the type cannot hold."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, ClassVar, Concatenate, NamedTuple, ParamSpec

from pydantic import AliasChoices, BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from dsconfig.schema.markers import Bounds
from dsconfig.schema.value_checks import ValueCheck
from dsconfig.schema.version import Version

REQUIRED: Any = ...
"""The default of a key that its block cannot do without."""

DECLARATION_MARK, HISTORY_MARK = "x-declaration", "x-history"
"""What the makers of JSON Schemas read beside pydantic's own output."""

P = ParamSpec("P")


TRUE_WORDS = frozenset(("1", "on", "t", "true", "y", "yes"))
FALSE_WORDS = frozenset(("0", "off", "f", "false", "n", "no"))
"""The texts that pydantic's lax mode takes for a bool, in any letter case."""


class ReadAs(StrEnum):
    """What DeepSpeed's own model of a block reads a field as; most follow from the annotation."""

    BOOL = "true or false"
    INT = "an integer"
    FLOAT = "a number"
    STR = "a text"
    PATH = "a path"
    STAGE = "0, 1, 2 or 3"
    CHOICE = "one of its words"
    LIST = "a list"
    TEXT_OR_STRINGS = "a text or a list of texts"
    PASSES = 'a list of "z1", "z3", "autosp", "autotp"'
    DICT = "a block of keys"
    BLOCK = "a block of keys "
    """With a model of its own, which then reads it."""
    TEXT_OR_INT = "a text or an integer"
    LOSS_SCALE = "a number that is 0 or more"
    SCALE_INTEGER = "an integer "
    DTYPE = "a torch.dtype object, which no file can hold"
    ANY = "anything"


class Declaration(NamedTuple):
    """What is declared about a key beside its type, default and doc; versions as text.

    An object of this class sits in ``FieldInfo.json_schema_extra``, which pydantic calls.
    """

    unit: str | None = None
    since: str | None = None
    until: str | None = None
    """The first and last release that read it; left out: those of its block, or the one before
    ``refused`` or ``renamed``."""
    gap: tuple[str, str] | None = None
    """The first and last of some releases between that did not."""
    was: Mapping[str, Any] = {}
    bounds_was: Mapping[str, Bounds] = {}
    """What held before a release that changed the default, or a bound."""
    checked: str | None = None
    """The first release that refuses another type, where the block as a whole is not checked."""
    read_as: ReadAs | None = None
    """How DeepSpeed's model reads it, where the annotation says something else."""
    takes_null: bool = False
    """Whether DeepSpeed's model takes null for no block, where we do not."""
    checks: tuple[ValueCheck, ...] = ()
    """What DeepSpeed insists on where no model reads the key."""
    stages: tuple[int, ...] = ()
    """The ZeRO stages at which it does something."""
    refused: str | None = None
    """From this release on DeepSpeed stops at the name."""
    renamed: str | None = None
    """From this release on the name is no longer read."""
    deprecated: str | None = None
    """From this release on there is a warning."""
    replaced_by: str | None = None
    instead: str | None = None
    """What to do then, where that is more than to write ``replaced_by``."""
    in_engine: bool = False
    """Whether our engine serves what was removed."""
    required_when: str | None = None
    """The switch beside the key that makes it necessary."""
    spelled: tuple[str, ...] = ()
    """All accepted names, ours first; none where there is one only."""
    status: str | None = None
    memory: str | None = None
    see: tuple[str, ...] = ()
    taken_by: tuple[str, ...] = ()
    """The classes whose constructor has the argument, where not all that the optimizer may be
    built as have it."""

    @property
    def aliases(self) -> tuple[str, ...]:
        return self.spelled[1:]

    def __hash__(self) -> int:
        """Of this very object: pydantic holds it in sets, and a mapping has no hash."""
        return id(self)

    def __call__(self, schema: dict[str, Any]) -> None:
        """Leave a mark in the JSON Schema of the key, for the version it is made for."""
        schema[DECLARATION_MARK] = self


def _declaring(declaration: Callable[P, Declaration]) -> Callable[Concatenate[Any, str, P], Any]:
    def key(default: Any, doc: str, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        declared = declaration(*args, **kwargs)
        gone = declared.refused or declared.renamed
        if gone and not declared.until:
            minor, _, patch = gone.rpartition(".")
            declared = declared._replace(until=f"{minor}.{int(patch) - 1}")
        alias = AliasChoices(*declared.spelled) if declared.spelled else None
        # What `Field` does in the end; its forty parameters are felt where hundreds of keys load.
        return FieldInfo.from_field(
            default, description=doc, validation_alias=alias, json_schema_extra=declared
        )

    return key


key = _declaring(Declaration)
"""Declare a key of a block: its default, a line about it, and any fact of :class:`Declaration`."""


def declaration_of(field: FieldInfo) -> Declaration:
    """What is declared with a field; nothing for a field of plain pydantic."""
    extra = field.json_schema_extra
    return extra if isinstance(extra, Declaration) else Declaration()


class KeyHistory(NamedTuple):
    """When DeepSpeed read a block, and in which releases it refused unknown keys in it."""

    since: str = "0.3.0"
    until: str | None = None
    closed: tuple[tuple[str, str | None], ...] = ()
    status: str | None = None
    arguments: bool = False
    """Whether the keys are arguments of a Python call, which takes no others."""
    nested: bool = False
    """Whether the block is a field of another model of DeepSpeed's: "auto" is no block there."""
    auto_ignored_since: str = "0.3.0"
    """From which release on keys with the value "auto" are dropped before they are checked."""

    @property
    def spans(self) -> tuple[tuple[Version, Version | None], ...]:
        """``closed``, as releases."""
        return tuple(
            (Version.parse(start), Version.parse(end) if end else None)
            for start, end in self.closed
        )

    def is_closed_at(self, version: Version) -> bool:
        """Whether that release refuses unknown keys in the block."""
        return any(
            start <= version and (end is None or version <= end) for start, end in self.spans
        )

    def ignores_auto_at(self, version: Version) -> bool:
        """Whether that release drops keys with the value "auto" before it checks the block."""
        return Version.parse(self.auto_ignored_since) <= version


def _mark_history(schema: dict[str, Any], block: type["Block"]) -> None:
    schema[HISTORY_MARK] = block.history


class Block(BaseModel):
    """A mapping of a ds_config with a known set of keys.

    ``class Comet(Block, since="0.14.3", closed="0.14.3")``: read since that release, and
    unknown keys and wrong types refused by DeepSpeed since then.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        defer_build=True,
        frozen=True,
        json_schema_extra=_mark_history,
        protected_namespaces=(),  # no key begins like a method of pydantic's; spares the search
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
        above = cls.history
        cls.history = KeyHistory(
            since=since or above.since,
            until=until or above.until,
            closed=intervals or above.closed,
            status=status or above.status,
            arguments=arguments or above.arguments,
            nested=nested or above.nested,
            auto_ignored_since=auto_ignored_since or above.auto_ignored_since,
        )
