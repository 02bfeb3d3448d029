"""The value types of a ds_config, strict: an integral float is an integer, a bool is not.

Each is an ordinary annotation for a type checker; at run time a marker does the checking.
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
"""Names by which DeepSpeed knows a dtype; not each of them makes sense everywhere."""
Function = Annotated[str, NotInJson("function")]
TorchDtype = Annotated[str, NotInJson("torch.dtype")]


if TYPE_CHECKING:
    OrAuto = T | Literal["auto"]
    OrNativeAuto = T | Literal["auto"]
    OrAbsent = T | None
else:
    # The marker alone knows what else may stand there: most keys have one, and building a union
    # for each costs half of the time in which the root of a config is loaded.

    class OrAuto:
        """A value, or "auto" for a resolver to fill in."""

        def __class_getitem__(cls, value):
            return Annotated[value, AUTO_FOR_RESOLVER]

    class OrNativeAuto:
        """A value, or "auto" as a setting that DeepSpeed understands."""

        def __class_getitem__(cls, value):
            return Annotated[value, NATIVE_AUTO]

    class OrAbsent:
        """A value where the key is written, not null; None where the key is not written."""

        def __class_getitem__(cls, value):
            return value


OrList = Annotated[T | list[T], Either(list)]
"""One value for all parameter groups, or one per group."""
OrBool = Annotated[T | bool, Either(bool)]
"""A block, or the bare switch that older releases used."""
