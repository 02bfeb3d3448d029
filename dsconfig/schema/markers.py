"""Markers behind the value types: each builds one validator, for one error per fault.

They are plain classes, because a run pays for each of them at start-up.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from pydantic_core import PydanticCustomError, core_schema

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler

JsonSchema = dict[str, Any]
Check = Callable[[Any], Any]
AUTO: Literal["auto"] = "auto"
"""The placeholder that a resolver fills in."""
FIRST_BRANCH, SECOND_BRANCH = "<first>", "<second>"
"""Names of union branches in pydantic's error locations; they are no part of the path."""


class Bounds(NamedTuple):
    """Limits of a number; None is no limit."""

    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: float | None = None
    exclusive_maximum: float | None = None

    def contains(self, number: float) -> bool:
        """Whether a number lies inside; one that is not a number does not."""
        low, high, above, below = self
        return number == number and not (
            (low is not None and number < low)
            or (high is not None and number > high)
            or (above is not None and number <= above)
            or (below is not None and number >= below)
        )

    def describe(self) -> str:
        """``at least 0 and less than 1``; empty without a limit."""
        words = ("at least", "at most", "more than", "less than")
        limits = sorted(zip((0, 2, 1, 3), words, self, strict=True))
        return " and ".join(f"{word} {limit:g}" for _, word, limit in limits if limit is not None)

    def as_constraints(self) -> dict[str, Any]:
        """The limits under pydantic's names."""
        limits = zip(("ge", "le", "gt", "lt"), self, strict=True)
        return {name: limit for name, limit in limits if limit is not None}


NO_BOUNDS = Bounds()


def integral(value: Any) -> Any:
    """An integral float as an integer; anything else as it is."""
    return int(value) if type(value) is float and value.is_integer() else value


def a_number(value: Any) -> Any:
    """For a choice among integers: Python takes true for 1, we do not."""
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "true and false are no numbers")
    return integral(value)


def a_bool(value: Any) -> Any:
    """For a choice among bools: Python takes 0 for false, we do not."""
    if not isinstance(value, bool):
        raise PydanticCustomError("bool_type", "only true and false are bools")
    return value


def _keep(value: Any, check: Check) -> Any:
    check(value)
    return value


class Integral:
    """An integer: 5e8 is one; 1.5, true and "5" are not."""

    def __init__(self, bounds: Bounds = NO_BOUNDS) -> None:
        self.bounds = bounds

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> core_schema.CoreSchema:
        number = core_schema.int_schema(strict=True, **self.bounds.as_constraints())
        return core_schema.no_info_before_validator_function(integral, number)


class Real:
    """A number, kept as it was written (1 stays an integer)."""

    def __init__(self, bounds: Bounds = NO_BOUNDS, *, finite: bool = False) -> None:
        self.bounds = bounds
        self.finite = finite

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> core_schema.CoreSchema:
        number = core_schema.float_schema(
            strict=True, allow_inf_nan=not self.finite, **self.bounds.as_constraints()
        )
        return core_schema.no_info_wrap_validator_function(_keep, number)


def _auto_or(value: Any, check: Check) -> Any:
    return value if type(value) is str and value == AUTO else check(value)


class AutoOr:
    """``T | "auto"``; ``native`` where DeepSpeed itself gives "auto" a meaning."""

    def __init__(self, *, native: bool = False) -> None:
        self.native = native

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_wrap_validator_function(_auto_or, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: "GetJsonSchemaHandler"
    ) -> JsonSchema:
        return {"anyOf": [handler(schema), {"const": AUTO}]}


class Either:
    """A union of two branches, told apart before they are checked by the second's type."""

    def __init__(self, second: type) -> None:
        self.second = second

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> core_schema.CoreSchema:
        first, second = (handler.generate_schema(branch) for branch in get_args(source)[:2])
        return core_schema.tagged_union_schema(
            {FIRST_BRANCH: first, SECOND_BRANCH: second}, discriminator=self._branch_of
        )

    def _branch_of(self, value: Any) -> str:
        return SECOND_BRANCH if isinstance(value, self.second) else FIRST_BRANCH

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: "GetJsonSchemaHandler"
    ) -> JsonSchema:
        union = handler(schema)
        return {"anyOf": union.get("oneOf", [union])}


class AnyCase:
    """A Literal whose words (or those in ``only``) count in any letter case."""

    def __init__(self, *only: str) -> None:
        self.only = only

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> core_schema.CoreSchema:
        words = {word.lower() for word in self.only or get_args(source)}

        def known(value: Any, check: Check) -> Any:
            return value if isinstance(value, str) and value.lower() in words else check(value)

        return core_schema.no_info_wrap_validator_function(known, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: "GetJsonSchemaHandler"
    ) -> JsonSchema:
        exact = handler(schema)
        words = self.only or tuple(exact["enum"])
        return {"anyOf": [exact, {"type": "string", "pattern": any_case_pattern(words)}]}


def any_case_pattern(words: tuple[str, ...]) -> str:
    """A regular expression (ECMA 262) that matches the words in any letter case."""

    def letters(word: str) -> str:
        return "".join(f"[{c.upper()}{c.lower()}]" if c.isalpha() else c for c in word)

    # Python's $ also matches before a last line break; the lookahead forbids it.
    return "^(" + "|".join(letters(word) for word in words) + r")$(?!\n)"


def _refuse(value: Any) -> Any:
    raise PydanticCustomError("not_in_json", "only a program can hand this over")


class NotInJson:
    """A Python object of the named type, which no text can hold."""

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(_refuse)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: "GetJsonSchemaHandler"
    ) -> JsonSchema:
        return {"not": {}}
