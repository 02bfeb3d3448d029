"""Strict value types of a ds_config: an integral float is an integer, a bool is not.

Type checkers see ordinary annotations; at run time the markers validate.
"""

from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from pydantic import BeforeValidator, Field

from dsconfig.schema.markers import (
    AutoOr,
    Bounds,
    Either,
    Integral,
    NotInJson,
    Real,
    a_bool,
    a_number,
)

T = TypeVar("T")
AUTO_FOR_RESOLVER, NATIVE_AUTO = AutoOr(), AutoOr(native=True)

Integer = Annotated[int, Integral()]
Positive = Annotated[int, Integral(Bounds(exclusive_minimum=0))]
Natural = Annotated[int, Integral(Bounds(minimum=0))]
AtLeastOne = Annotated[int, Integral(Bounds(minimum=1))]

Number = Annotated[float, Real()]
Scale = Annotated[float, Real(Bounds(minimum=0.0), finite=True)]
Share = Annotated[float, Real(Bounds(minimum=0.0, maximum=1.0))]
OpenShare = Annotated[float, Real(Bounds(exclusive_minimum=0.0, exclusive_maximum=1.0))]
Pair = Annotated[list[Number], Field(min_length=2, max_length=2)]

Stage = Annotated[Literal[0, 1, 2, 3], BeforeValidator(a_number)]
Bits = Annotated[Literal[4, 8], BeforeValidator(a_number)]
OnlyFalse = Annotated[Literal[False], BeforeValidator(a_bool)]
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
"""DeepSpeed's dtype names; not all are valid for every key."""
Function = Annotated[str, NotInJson("function")]
TorchDtype = Annotated[str, NotInJson("torch.dtype")]


if TYPE_CHECKING:
    OrAuto = T | Literal["auto"]
    OrNativeAuto = T | Literal["auto"]
    OrAbsent = T | None
else:
    # The marker accepts the alternatives; building a union per key would double import time.

    class OrAuto:
        """A value, or "auto" for a resolver to fill in."""

        def __class_getitem__(cls, value):
            return Annotated[value, AUTO_FOR_RESOLVER]

    class OrNativeAuto:
        """A value, or "auto" as a valid DeepSpeed setting."""

        def __class_getitem__(cls, value):
            return Annotated[value, NATIVE_AUTO]

    class OrAbsent:
        """A value that must not be null if the key is present; None if it is absent."""

        def __class_getitem__(cls, value):
            return value


OrList = Annotated[T | list[T], Either(list)]
"""One value for all parameter groups, or one per group."""
OrBool = Annotated[T | bool, Either(bool)]
"""A block, or the boolean that older releases used."""
