"""Annotations of value types; each builds one validator, for one error per problem.

They are plain classes to keep start-up fast.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from pydantic_core import PydanticCustomError, core_schema

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler

JsonSchema = dict[str, Any]
Check = Callable[[Any], Any]
AUTO: Literal["auto"] = "auto"
"""Placeholder that a resolver fills in."""
FIRST_BRANCH, SECOND_BRANCH = "<first>", "<second>"
"""Names of union branches in pydantic's error locations; not part of the path."""


class Bounds(NamedTuple):
    """Limits of a number; None: no limit."""

    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: float | None = None
    exclusive_maximum: float | None = None

    def contains(self, number: float) -> bool:
        """Return whether a number is within the bounds; NaN is not."""
        low, high, above, below = self
        return number == number and not (
            (low is not None and number < low)
            or (high is not None and number > high)
            or (above is not None and number <= above)
            or (below is not None and number >= below)
        )

    def describe(self) -> str:
        """Return for example ``at least 0 and less than 1``; empty without limits."""
        words = ("at least", "at most", "more than", "less than")
        limits = sorted(zip((0, 2, 1, 3), words, self, strict=True))
        return " and ".join(f"{word} {limit:g}" for _, word, limit in limits if limit is not None)

    def as_constraints(self) -> dict[str, Any]:
        """Return the limits under pydantic's names."""
        limits = zip(("ge", "le", "gt", "lt"), self, strict=True)
        return {name: limit for name, limit in limits if limit is not None}


NO_BOUNDS = Bounds()


def integral(value: Any) -> Any:
    """Convert an integral float to int; return other values unchanged."""
    return int(value) if type(value) is float and value.is_integer() else value


def a_number(value: Any) -> Any:
    """Reject bools in a choice among integers, where Python treats true as 1."""
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "true and false are not numbers")
    return integral(value)


def a_bool(value: Any) -> Any:
    """Reject numbers in a choice among bools, where Python treats 0 as false."""
    if not isinstance(value, bool):
        raise PydanticCustomError("bool_type", "expected true or false")
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
    """A number, kept as written (1 stays an integer)."""

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
    """``T | "auto"``; ``native``: DeepSpeed itself gives "auto" a meaning."""

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
    """A union of two branches, selected by the type of the second before validation."""

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
    """A case-insensitive Literal (or only the words in ``only``)."""

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
    """Return a regular expression (ECMA 262) that matches words case-insensitively."""

    def letters(word: str) -> str:
        return "".join(f"[{c.upper()}{c.lower()}]" if c.isalpha() else c for c in word)

    # Python's $ also matches before a trailing newline; the lookahead excludes it.
    return "^(" + "|".join(letters(word) for word in words) + r")$(?!\n)"


def _refuse(value: Any) -> Any:
    raise PydanticCustomError("not_in_json", "cannot be set in a file")


class NotInJson:
    """A Python object of the named type, which cannot be set in a file."""

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
