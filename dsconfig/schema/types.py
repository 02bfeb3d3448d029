"""The value types of a ds_config, strict: an integral float is an integer, a bool is not.

Each is an ordinary annotation for a type checker. At run time it carries a marker that
builds pydantic's validator, so that one wrong value makes exactly one error, at its place.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast, get_args

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError, SchemaValidator, core_schema

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler

    from dsconfig.schema.declare import Block

T = TypeVar("T")
JsonSchema = dict[str, Any]
AUTO: Literal["auto"] = "auto"
"""The placeholder that a resolver fills in."""
LIST_BRANCH, ITEM_BRANCH = "<list>", "<item>"
"""Names of union branches in pydantic's error locations; they are no part of the path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of a number; None is no limit."""

    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: float | None = None
    exclusive_maximum: float | None = None

    def as_constraints(self) -> dict[str, Any]:
        pairs = {
            "ge": self.minimum,
            "le": self.maximum,
            "gt": self.exclusive_minimum,
            "lt": self.exclusive_maximum,
        }
        return {name: limit for name, limit in pairs.items() if limit is not None}


NO_BOUNDS = Bounds()


def _whole(value: Any) -> Any:
    return int(value) if type(value) is float and value.is_integer() else value


def _keep(value: Any, check: Callable[[Any], Any]) -> Any:
    check(value)
    return value


@dataclass(frozen=True, slots=True)
class Whole:
    """Marker: an integer; 5e8 is one, 1.5, true and "5" are not."""

    bounds: Bounds = NO_BOUNDS

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> core_schema.CoreSchema:
        number = core_schema.int_schema(strict=True, **self.bounds.as_constraints())
        return core_schema.no_info_before_validator_function(_whole, number)


@dataclass(frozen=True, slots=True)
class Real:
    """Marker: a number, kept as it was written (1 stays an int)."""

    bounds: Bounds = NO_BOUNDS
    finite: bool = False

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> core_schema.CoreSchema:
        number = core_schema.float_schema(
            strict=True, allow_inf_nan=not self.finite, **self.bounds.as_constraints()
        )
        return core_schema.no_info_wrap_validator_function(_keep, number)


Integer = Annotated[int, Whole()]
Positive = Annotated[int, Whole(Bounds(exclusive_minimum=0))]
Natural = Annotated[int, Whole(Bounds(minimum=0))]
AtLeastOne = Annotated[int, Whole(Bounds(minimum=1))]
Number = Annotated[float, Real()]
FiniteScale = Annotated[float, Real(Bounds(minimum=0), finite=True)]
Share = Annotated[float, Real(Bounds(minimum=0.0, maximum=1.0))]
OpenShare = Annotated[float, Real(Bounds(exclusive_minimum=0.0, exclusive_maximum=1.0))]

Stage = Annotated[Literal[0, 1, 2, 3], BeforeValidator(_whole)]
Bits = Annotated[Literal[4, 8], BeforeValidator(_whole)]
TorchFormat = Literal[
    "fp32",
    "fp16",
    "bf16",
    "float32",
    "float16",
    "bfloat16",
    "float",
    "half",
    "torch.float32",
    "torch.float16",
    "torch.bfloat16",
    "int8",
    "torch.int8",
]
"""Names by which DeepSpeed knows a dtype; not each of them makes sense everywhere."""
Pair = Annotated[list[Number], Field(min_length=2, max_length=2)]


def _auto_or(value: Any, check: Callable[[Any], Any]) -> Any:
    return value if value == AUTO and type(value) is str else check(value)


@dataclass(frozen=True, slots=True)
class AutoMarker:
    """Marker of ``T | "auto"``. ``native`` where DeepSpeed itself gives "auto" a meaning."""

    native: bool = False

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> core_schema.CoreSchema:
        inner = handler.generate_schema(get_args(source)[0])
        return core_schema.no_info_wrap_validator_function(_auto_or, inner)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: "GetJsonSchemaHandler"
    ) -> JsonSchema:
        return {"anyOf": [handler(schema), {"const": AUTO}]}


OrAuto = Annotated[T | Literal["auto"], AutoMarker()]
"""A value, or "auto" for a resolver to fill in."""
OrNativeAuto = Annotated[T | Literal["auto"], AutoMarker(native=True)]
"""A value, or "auto" as a setting that DeepSpeed understands."""


@dataclass(frozen=True, slots=True)
class AbsentMarker:
    """Marker: None stands for an absent key, and null may not be written."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> core_schema.CoreSchema:
        return handler.generate_schema(get_args(source)[0])


OrAbsent = Annotated[T | None, AbsentMarker()]
"""A value where the key is written; None where it is not."""


def _is_list(value: Any) -> str:
    return LIST_BRANCH if isinstance(value, list) else ITEM_BRANCH


def _is_bool(value: Any) -> str:
    return LIST_BRANCH if isinstance(value, bool) else ITEM_BRANCH


@dataclass(frozen=True, slots=True)
class EitherMarker:
    """Marker of a two-branch union that is told apart before it is checked."""

    discriminate: Callable[[Any], str]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> core_schema.CoreSchema:
        item, other = (handler.generate_schema(branch) for branch in get_args(source)[:2])
        return core_schema.tagged_union_schema(
            {ITEM_BRANCH: item, LIST_BRANCH: other}, discriminator=self.discriminate
        )


OrList = Annotated[T | list[T], EitherMarker(_is_list)]
"""One value for all parameter groups, or one per group."""
OrBool = Annotated[T | bool, EitherMarker(_is_bool)]
"""A block, or the bare switch that older releases used."""


@dataclass(frozen=True, slots=True)
class AnyCase:
    """Marker of a Literal whose words (or those in ``only``) count in any letter case."""

    only: tuple[str, ...] = ()

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> core_schema.CoreSchema:
        words = {word.lower() for word in self.only or get_args(source)}
        check = handler(source)

        def known(value: Any, check: Callable[[Any], Any]) -> Any:
            return value if isinstance(value, str) and value.lower() in words else check(value)

        return core_schema.no_info_wrap_validator_function(known, check)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: "GetJsonSchemaHandler"
    ) -> JsonSchema:
        exact = handler(schema)
        words = list(self.only) or exact.get("enum") or [exact["const"]]
        return {"anyOf": [exact, {"type": "string", "pattern": any_case_pattern(words)}]}


def any_case_pattern(words: list[str]) -> str:
    """A regular expression (ECMA 262) that matches the words in any letter case."""

    def letters(word: str) -> str:
        return "".join(f"[{c.upper()}{c.lower()}]" if c.isalpha() else c for c in word)

    return "^(" + "|".join(letters(word) for word in words) + ")$"


def _refuse(value: Any) -> Any:
    raise PydanticCustomError("not_in_json", "only a program can hand this over")


@dataclass(frozen=True, slots=True)
class NotInJson:
    """Marker of a Python object of the named type, which no text can hold."""

    type: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(_refuse)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: "GetJsonSchemaHandler"
    ) -> JsonSchema:
        return {"not": {}}


@dataclass(frozen=True, slots=True)
class Lazy:
    """Marker of a block whose module is imported when a file has that block."""

    module: str
    name: str

    def load(self) -> "type[Block]":
        return getattr(import_module(f"dsconfig.schema.blocks.{self.module}"), self.name)

    def validate(self, value: Any) -> Any:
        # A ValidationError raised in here keeps its places below the place of the block.
        return self.load().model_validate(value)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.validate)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: "GetJsonSchemaHandler"
    ) -> JsonSchema:
        block = self.load()
        block.model_rebuild()
        return handler(block.__pydantic_core_schema__)


@dataclass(frozen=True, slots=True)
class Variants:
    """Marker of a mapping whose keys depend on the ``type`` beside it: a discriminated union.

    Only the branch that a file names is loaded. Names are matched exactly, those of
    ``any_case`` in any letter case.
    """

    blocks: Mapping[str, Lazy]
    any_case: frozenset[str] = frozenset()
    nullable: bool = False

    def find(self, name: Any) -> Lazy | None:
        """The branch of a type, None where no such type is known."""
        if not isinstance(name, str):
            return None
        return self._any_case().get(name.lower()) or self.blocks.get(name)

    def _any_case(self) -> dict[str, Lazy]:
        return {name.lower(): self.blocks[name] for name in self.any_case}

    def validate(self, value: Any, info: core_schema.ValidationInfo) -> Any:
        block = self.find(info.data.get("type"))
        if (value is None and self.nullable) or (block is None and isinstance(value, dict)):
            return cast(Any, value)
        return block.validate(value) if block else self._anything.validate_python(value)

    @property
    def _anything(self) -> SchemaValidator:
        return SchemaValidator(core_schema.dict_schema())

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> core_schema.CoreSchema:
        return core_schema.with_info_plain_validator_function(self.validate)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: "GetJsonSchemaHandler"
    ) -> JsonSchema:
        return {"type": ["object", "null"]} if self.nullable else {"type": "object"}


def lazy(module: str, name: str) -> Any:
    """The block ``name`` of ``dsconfig.schema.blocks.module``, loaded on first use."""
    return Annotated[Any, Lazy(module, name)]
