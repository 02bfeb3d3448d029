"""Shape of a value, derived from its annotation, and its description."""

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from dsconfig.schema.declare import Block
from dsconfig.schema.lazy import Lazy, Variants
from dsconfig.schema.markers import (
    NO_BOUNDS,
    AnyCase,
    AutoOr,
    Bounds,
    Either,
    Integral,
    NotInJson,
    Real,
)

_PLAIN = {bool: "boolean", str: "string", int: "integer", float: "number", NoneType: "null"}


BlockSource = type[Block] | Lazy | Variants | None
"""A block or a reference to it."""


class Shape(NamedTuple):
    """Type of a value.

    ``type``: a JSON type, ``array<T>``, ``any`` or a union with ``|``; ``nullable`` adds ``null``.
    ``container``: ``*`` for a mapping of blocks by name and ``[]`` for a list of blocks.
    """

    type: str
    bounds: Bounds = NO_BOUNDS
    choices: tuple[Any, ...] = ()
    any_case: tuple[str, ...] = ()
    auto: bool = False
    native_auto: bool = False
    nullable: bool = False
    block: BlockSource = None
    container: str = ""
    finite: bool = False
    """Whether DeepSpeed checks that a number is finite."""


def shape_of(annotation: Any, metadata: tuple[Any, ...] = ()) -> Shape:
    """Return the shape of an annotation with its Annotated metadata."""
    if get_origin(annotation) is Annotated:
        annotation, *inner = get_args(annotation)
        return shape_of(annotation, (*inner, *metadata))
    return _marked(annotation, *metadata) if metadata else _plain(annotation)


def _marked(annotation: Any, *metadata: Any) -> Shape:
    """Return the shape after applying the last marker."""
    *before, marker = metadata
    match marker:
        case Integral():
            return Shape(type="integer", bounds=marker.bounds)
        case Real():
            return Shape(type="number", bounds=marker.bounds, finite=marker.finite)
        case Lazy():
            return Shape(type="object", block=marker)
        case Variants():
            return Shape(type="object", block=marker, nullable=marker.nullable)
        case NotInJson():
            return Shape(type=marker.type_name)
        case AutoOr():
            shape = shape_of(annotation, tuple(before))
            type_ = f"{shape.type}|string" if marker.native else shape.type
            return shape._replace(type=type_, auto=not marker.native, native_auto=marker.native)
        case Either():
            first, second = (shape_of(branch) for branch in get_args(annotation)[:2])
            return first._replace(type=f"{first.type}|{second.type}")
        case AnyCase():
            shape = _plain(annotation)
            return shape._replace(any_case=marker.only or shape.choices)
        case _:
            return shape_of(annotation, tuple(before))


def _plain(annotation: Any) -> Shape:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        (inner,) = (branch for branch in arguments if branch is not NoneType)
        return shape_of(inner)._replace(nullable=True)
    if origin is Literal:
        return Shape(type=_PLAIN[type(arguments[0])], choices=arguments)
    if origin is dict:
        return shape_of(arguments[1])._replace(type="object", container="*")
    if origin is list:
        item = shape_of(arguments[0])
        type_ = "array" if item.type == "any" else f"array<{item.type}>"
        return item._replace(type=type_, container="[]")
    if isinstance(annotation, type) and issubclass(annotation, Block):
        return Shape(type="object", block=annotation)
    if annotation in _PLAIN or annotation is None:
        return Shape(type=_PLAIN[annotation or NoneType])
    return Shape(type="any")


def describe(shape: Shape) -> str:
    """Describe valid values: ``an integer greater than 0 or "auto"``."""
    parts = shape.type.split("|")
    phrases = [_phrase(part, shape) for part in parts if part not in ("string", "boolean")]
    phrases += ["true", "false"] * ("boolean" in parts)
    if not phrases or (shape.type != "string" and "string" in shape.type.split("|")):
        phrases.append('"auto"' if shape.native_auto else _phrase("string", shape))
    if shape.auto:
        phrases.append('"auto"')
    if shape.nullable:
        phrases.append("null")
    return phrases[0] if len(phrases) == 1 else ", ".join(phrases[:-1]) + f" or {phrases[-1]}"


_PHRASES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "object": "an object",
    "array": "a list",
    "null": "null",
    "any": "any value",
}
_PLURALS = {"string": "strings", "integer": "integers", "number": "numbers", "object": "objects"}


def _phrase(type_: str, shape: Shape) -> str:
    if shape.choices and not type_.startswith("array"):
        words = [
            f'"{word}"' if isinstance(word, str) else str(word).lower() for word in shape.choices
        ]
        return words[0] if len(words) == 1 else "one of " + ", ".join(words)
    if type_.startswith("array<"):
        item = type_.removeprefix("array<").removesuffix(">")
        return "a list of " + _PLURALS.get(item, "lists")
    limits = _limits(shape.bounds) if type_ in ("integer", "number") else ""
    return _PHRASES.get(type_, f"a Python {type_}") + limits


def _limits(bounds: Bounds) -> str:
    if bounds.minimum is not None and bounds.maximum is not None:
        return f" from {bounds.minimum:g} to {bounds.maximum:g}"
    if bounds.exclusive_minimum is not None and bounds.exclusive_maximum is not None:
        return f" between {bounds.exclusive_minimum:g} and {bounds.exclusive_maximum:g}"
    if bounds.minimum is not None:
        return f" of at least {bounds.minimum:g}"
    if bounds.exclusive_minimum is not None:
        return f" greater than {bounds.exclusive_minimum:g}"
    return ""
