"""What DeepSpeed insists on where it reads a value with plain ``dict.get``.

Each is one way in which a single value stops the program: while the file is read, or (``late``)
when the engine is built or steps for the first time. A value that passes may still be one that
nobody meant; that is for the rules to say.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard

from dsconfig.schema.version import Version

Test = Callable[[Any], bool]


class ValueCheck(NamedTuple):
    """``accepts`` is true for values the program takes; ``expected`` says which those are.

    It holds as long as the key is read, or between two releases.
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


def _texts(value: Any) -> bool:
    """Iterable, and each item a text; a bare text counts, its characters are texts."""
    if isinstance(value, (str, dict)):
        return True
    return _is_list(value) and all(isinstance(item, str) for item in value)


def _timers(value: Any) -> bool:
    """A block, or a list or text that does not hold "throughput", which is looked up then."""
    return isinstance(value, dict) or (isinstance(value, (list, str)) and "throughput" not in value)


def _as_integer(value: Any) -> bool:
    """Whether Python's ``int()`` takes it."""
    if not isinstance(value, (int, float, str)):
        return False
    try:
        int(value)
    except (ValueError, OverflowError):
        return False
    return True


def one_of(*words: str, null: bool = False, late: bool = False) -> ValueCheck:
    """One of some words, in any letter case."""
    known = {word.lower() for word in words}

    def accepts(value: Any) -> bool:
        return null if value is None else isinstance(value, str) and value.lower() in known

    said = [f'"{word}"' for word in words]
    listed = " or ".join([", ".join(said[:-1]), said[-1]])
    return ValueCheck(accepts, listed if len(words) < 4 else f"one of {', '.join(said)}", late)


def _block_or_empty(value: Any) -> bool:
    return not value or isinstance(value, dict)


def _block_with_switch(value: Any) -> bool:
    return isinstance(value, dict) and "enabled" in value


def _steps_or_null(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and value != 0)


def _divisible(value: Any) -> bool:
    return not value or isinstance(value, (int, float))


def _patterns(value: Any) -> bool:
    return value == "auto" or (_is_list(value) and _texts(value))


_BLOCK, _SWITCH, _FORMATS = "a block of keys", "true or false", 'one of "fp16", "bf16", "fp32"'
A_BLOCK = ValueCheck(_instance(dict), _BLOCK)
A_BLOCK_OR_NULL = ValueCheck(_instance(dict, type(None)), _BLOCK)
A_BLOCK_OR_EMPTY = ValueCheck(_block_or_empty, _BLOCK)
A_BLOCK_WITH_SWITCH = ValueCheck(_block_with_switch, 'a block of keys with "enabled"')
"""Its "enabled" is taken out without asking whether it is there."""
TIMERS = ValueCheck(_timers, _BLOCK)
COUNT = ValueCheck(_instance(int, float, type(None)), "a positive integer")
A_NUMBER = ValueCheck(_instance(int, float), "a number", late=True)
STEPS_BETWEEN_LINES = ValueCheck(_steps_or_null, "a number of steps, not 0", late=True)
DIVISIBLE = ValueCheck(_divisible, "an integer")
AS_INTEGER = ValueCheck(_as_integer, "an integer")
SWITCH = ValueCheck(_instance(int), _SWITCH)
"""What Python's ``|`` with a bool takes."""
ZERO_OR_ONE = ValueCheck(_exactly(0, 1), _SWITCH)
ONLY_NULL = ValueCheck(_instance(type(None)), "null")
A_NAME = ValueCheck(_instance(str, type(None)), "a name")
A_DIRECTORY = ValueCheck(bool, "a directory")
CLASS_NAMES = ValueCheck(_texts, "a list of class names")
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
