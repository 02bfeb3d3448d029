"""How a block declares its keys: a pydantic field, and the facts that the type cannot hold."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

from pydantic import AliasChoices, BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from dsconfig.schema.by_hand import ByHand
from dsconfig.schema.markers import Bounds

REQUIRED: Any = ...
"""The default of a key that its block cannot do without."""

FACTS_MARK, LIFE_MARK = "x-facts", "x-life"
"""What the makers of JSON Schemas read beside pydantic's own output."""

TRAINER = ("transformers", "accelerate")
"""Both Hugging Face programs fill "auto" here."""
TRANSFORMERS = ("transformers",)
ACCELERATE = ("accelerate",)


class Kind(StrEnum):
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


class Facts(NamedTuple):
    """What is declared about a key beside its type and default; versions as text.

    An object of this class sits in ``FieldInfo.json_schema_extra``, which pydantic calls.
    """

    unit: str | None = None
    since: str | None = None
    until: str | None = None
    was: tuple[tuple[str, Any], ...] = ()
    bounds_was: tuple[tuple[str, Bounds], ...] = ()
    checked: str | None = None
    gap: tuple[str, str] | None = None
    refused: str | None = None
    read_as: Kind | None = None
    takes_null: bool = False
    by_hand: tuple[ByHand, ...] = ()
    stages: tuple[int, ...] = ()
    renamed: str | None = None
    deprecated: str | None = None
    instead: str | None = None
    in_engine: bool = False
    required_when: str | None = None
    auto: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    replaced_by: str | None = None
    status: str | None = None
    memory: str | None = None
    see: tuple[str, ...] = ()
    taken_by: tuple[str, ...] = ()

    def __call__(self, schema: dict[str, Any]) -> None:
        """Leave a mark in the JSON Schema of the key, for the version it is made for."""
        schema[FACTS_MARK] = self


def key(
    default: Any,
    doc: str,
    *,
    unit: str | None = None,
    since: str | None = None,
    until: str | None = None,
    was: Mapping[str, Any] | None = None,
    bounds_was: Mapping[str, Bounds] | None = None,
    checked: str | None = None,
    gap: tuple[str, str] | None = None,
    refused: str | None = None,
    read_as: Kind | None = None,
    takes_null: bool = False,
    by_hand: tuple[ByHand, ...] = (),
    stages: tuple[int, ...] = (),
    renamed: str | None = None,
    deprecated: str | None = None,
    instead: str | None = None,
    in_engine: bool = False,
    required_when: str | None = None,
    auto: tuple[str, ...] = (),
    spelled: tuple[str, ...] = (),
    replaced_by: str | None = None,
    status: str | None = None,
    memory: str | None = None,
    see: tuple[str, ...] = (),
    taken_by: tuple[str, ...] = (),
) -> Any:
    """Declare a key of a block.

    ``since`` and ``until`` are the first and last release that read it (default: the
    block's). ``was`` and ``bounds_was`` map the release that changed a default or a bound
    to what held before. ``checked`` is the first release that refuses another type, where
    the block as a whole is not checked. ``required_when`` names the switch beside
    the key that makes it necessary. ``spelled`` lists all accepted names, ours first.
    ``taken_by`` names the classes whose constructor has the argument, where not all that the
    optimizer may be built as have it.
    ``read_as`` is how DeepSpeed's model reads it, where the annotation says something else;
    ``takes_null`` where it takes null for no block, and we do not. ``by_hand`` is what
    DeepSpeed insists on where no model reads the key. ``stages`` are the ZeRO stages at which it
    does something. From ``refused`` on DeepSpeed stops at the name, from ``renamed`` on it is no
    longer read, from ``deprecated`` on there is a warning; ``instead`` is what to do then, where
    that is more than to write ``replaced_by``. ``in_engine``: our engine serves what was removed.
    """
    facts = Facts(
        unit=unit,
        since=since,
        until=until,
        was=tuple((was or {}).items()),
        bounds_was=tuple((bounds_was or {}).items()),
        checked=checked,
        gap=gap,
        refused=refused,
        read_as=read_as,
        takes_null=takes_null,
        by_hand=by_hand,
        stages=stages,
        renamed=renamed,
        deprecated=deprecated,
        instead=instead,
        in_engine=in_engine,
        required_when=required_when,
        auto=auto,
        aliases=spelled[1:],
        replaced_by=replaced_by,
        status=status,
        memory=memory,
        see=see,
        taken_by=taken_by,
    )
    alias = AliasChoices(*spelled) if spelled else None
    # What `Field` does in the end; its forty parameters are felt where hundreds of keys load.
    return FieldInfo.from_field(
        default, description=doc, validation_alias=alias, json_schema_extra=facts
    )


def facts_of(field: FieldInfo) -> Facts:
    """The facts declared with a field; none for a field of plain pydantic."""
    extra = field.json_schema_extra
    return extra if isinstance(extra, Facts) else Facts()


class Life(NamedTuple):
    """When DeepSpeed read a block, and in which releases it refused unknown keys in it."""

    since: str = "0.3.0"
    until: str | None = None
    closed: tuple[tuple[str, str | None], ...] = ()
    status: str | None = None
    arguments: bool = False
    """Whether the keys are arguments of a Python call, which takes no others."""
    nested: bool = False
    """Whether the block is a field of another model of DeepSpeed's: "auto" is no block there."""
    drops_auto: str = "0.3.0"
    """From which release on keys with the value "auto" are dropped before they are checked."""


def _mark_life(schema: dict[str, Any], block: type["Block"]) -> None:
    schema[LIFE_MARK] = block.life


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
        json_schema_extra=_mark_life,
        protected_namespaces=(),  # no key begins like a method of pydantic's; spares the search
    )
    life: ClassVar[Life] = Life()

    def __init_subclass__(
        cls,
        *,
        since: str | None = None,
        until: str | None = None,
        closed: str | tuple[tuple[str, str | None], ...] = (),
        status: str | None = None,
        arguments: bool = False,
        nested: bool = False,
        drops_auto: str | None = None,
        **config: Any,
    ) -> None:
        super().__init_subclass__(**config)
        intervals = ((closed, None),) if isinstance(closed, str) else closed
        above = cls.life
        cls.life = Life(
            since=since or above.since,
            until=until or above.until,
            closed=intervals or above.closed,
            status=status or above.status,
            arguments=arguments or above.arguments,
            nested=nested or above.nested,
            drops_auto=drops_auto or above.drops_auto,
        )
