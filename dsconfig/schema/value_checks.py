"""Checks of values that DeepSpeed reads with plain ``dict.get``, without a pydantic model.

A value that fails a check stops the program: while it reads the config, or (``late``) at engine
initialization or the first step. Values that pass may still be wrong, which rules report.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard

from dsconfig.schema.version import Version

Test = Callable[[Any], bool]


class ValueCheck(NamedTuple):
    """``accepts`` returns whether DeepSpeed accepts a value; ``expected`` describes these values.

    Applies in all releases that read the key, or from ``first`` to ``last``.
    """

    accepts: Test
    expected: str
    late: bool = False
    first: str | None = None
    last: str | None = None

    def since(self, release: str) -> "ValueCheck":
        return self._replace(first=release)

    def until(self, release: str) -> "ValueCheck":
        return self._replace(last=release)

    def applies_at(self, version: Version) -> bool:
        if self.first is not None and version < Version.parse(self.first):
            return False
        return self.last is None or version <= Version.parse(self.last)


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _instance(*types: type) -> Test:
    return lambda value: isinstance(value, types)


def _exactly(*choices: Any) -> Test:
    def accepts(value: Any) -> bool:
        return isinstance(value, (str, int, float, type(None))) and value in choices

    return accepts


def _strings(value: Any) -> bool:
    """Return whether iterating yields only strings; true for a plain string as well."""
    if isinstance(value, (str, dict)):
        return True
    return _is_list(value) and all(isinstance(item, str) for item in value)


def _timers(value: Any) -> bool:
    """Return whether a value is a block, or a list or string without "throughput"."""
    return isinstance(value, dict) or (isinstance(value, (list, str)) and "throughput" not in value)


def _as_integer(value: Any) -> bool:
    """Return whether Python's ``int()`` accepts a value."""
    if not isinstance(value, (int, float, str)):
        return False
    try:
        int(value)
    except (ValueError, OverflowError):
        return False
    return True


def one_of(*words: str, null: bool = False, late: bool = False) -> ValueCheck:
    """Return the check for one of several words (case-insensitive)."""
    known = {word.lower() for word in words}

    def accepts(value: Any) -> bool:
        return null if value is None else isinstance(value, str) and value.lower() in known

    quoted = [f'"{word}"' for word in words]
    alternatives = " or ".join([", ".join(quoted[:-1]), quoted[-1]])
    expected = alternatives if len(words) < 4 else f"one of {', '.join(quoted)}"
    return ValueCheck(accepts, expected, late)


def _block_or_empty(value: Any) -> bool:
    return not value or isinstance(value, dict)


def _block_with_switch(value: Any) -> bool:
    return isinstance(value, dict) and "enabled" in value


def _steps_or_null(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and value != 0)


def _divisible(value: Any) -> bool:
    return not value or isinstance(value, (int, float))


def _patterns(value: Any) -> bool:
    return value == "auto" or (_is_list(value) and _strings(value))


_BLOCK, _SWITCH, _FORMATS = "an object", "true or false", 'one of "fp16", "bf16", "fp32"'
A_BLOCK = ValueCheck(_instance(dict), _BLOCK)
A_BLOCK_OR_NULL = ValueCheck(_instance(dict, type(None)), _BLOCK)
A_BLOCK_OR_EMPTY = ValueCheck(_block_or_empty, _BLOCK)
A_BLOCK_WITH_SWITCH = ValueCheck(_block_with_switch, 'an object with "enabled"')
"""DeepSpeed pops "enabled" without checking that it exists."""
TIMERS = ValueCheck(_timers, _BLOCK)
COUNT = ValueCheck(_instance(int, float, type(None)), "a positive integer")
A_NUMBER = ValueCheck(_instance(int, float), "a number", late=True)
NONZERO_STEPS = ValueCheck(_steps_or_null, "a number of steps, not 0", late=True)
DIVISIBLE = ValueCheck(_divisible, "an integer")
AS_INTEGER = ValueCheck(_as_integer, "an integer")
SWITCH = ValueCheck(_instance(int), _SWITCH)
"""Values that Python's ``|`` accepts with a bool."""
ZERO_OR_ONE = ValueCheck(_exactly(0, 1), _SWITCH)
ONLY_NULL = ValueCheck(_instance(type(None)), "null")
A_NAME = ValueCheck(_instance(str, type(None)), "a name")
A_DIRECTORY = ValueCheck(bool, "a directory")
CLASS_NAMES = ValueCheck(_strings, "a list of class names")
NAME_PATTERNS = ValueCheck(_patterns, '"auto" or a list of name patterns')
SPARSITY_MODE = ValueCheck(
    _exactly("dense", "fixed", "variable", "bigbird", "bslongformer"),
    "one of dense, fixed, variable, bigbird, bslongformer",
)
DTYPES = {
    "fp16": ("fp16", "float16", "half", "torch.float16"),
    "bf16": ("bf16", "bfloat16", "torch.bfloat16"),
    "fp32": ("fp32", "float32", "float", "torch.float32"),
    "int8": ("int8", "torch.int8"),
}
DTYPE_OF_NAME = {name: dtype for dtype, names in DTYPES.items() for name in names}
A_DTYPE = ValueCheck(_exactly(*DTYPE_OF_NAME), _FORMATS)
A_DTYPE_LATER = ValueCheck(_exactly(None, *DTYPE_OF_NAME), _FORMATS, late=True)
FORMATS = ValueCheck(one_of("fp16", "fp32", "bf16", null=True).accepts, _FORMATS).since("0.14.1")
OLD_FORMATS = ValueCheck(
    one_of("fp16", "fp32", "bfp16", null=True).accepts, 'one of "fp16", "bfp16", "fp32"'
).until("0.14.0")
