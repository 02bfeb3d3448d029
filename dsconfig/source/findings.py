"""What the reader itself has to say: one function per code; and how a finding is named."""

import json

from dsconfig.report import Applicability, Diagnostic, Edit, Effect, Fix, Position, Range
from dsconfig.source.pointer import split

UNREADABLE = "DSC001"
SYNTAX = "DSC002"
NO_CONFIG, NO_CONFIG_NAME = "DSC009", "no-config-inside"
NEVER_IGNORED = (UNREADABLE, SYNTAX)


def matches(selector: str, found: Diagnostic) -> bool:
    """Whether a code, a prefix of one or a rule's name speaks of this finding."""
    wanted = selector.strip()
    if wanted[:3].upper() == "DSC":
        return found.code.startswith(wanted.upper())
    return wanted.lower() == found.name


def quoted(text: str) -> str:
    """A text as a config spells it."""
    return json.dumps(text, ensure_ascii=False)


def unreadable(message: str, help: str) -> Diagnostic:
    """There is nothing to judge: the file is missing, no text, too large, too deep."""
    return Diagnostic(UNREADABLE, "unreadable-input", Effect.REFUSED, message, help=help)


def syntax_error(
    message: str, pointer: str, place: Range, help: str | None = None, fix: Fix | None = None
) -> Diagnostic:
    """DeepSpeed's HJSON reader stops here."""
    said = f"{message}; no program can read the file"
    return Diagnostic(
        SYNTAX, "syntax-error", Effect.REFUSED, said, pointer, place, help=help, fix=fix
    )


TWICE = "duplicate-key"


def duplicate_key(pointer: str, place: Range, *, in_file: bool) -> Diagnostic:
    """A key stands twice in one object."""
    key = split(pointer)[-1]
    effect = Effect.REFUSED if in_file else Effect.ALTERED
    if in_file:
        message = (
            f'the key "{key}" stands twice in the same object; DeepSpeed refuses the file, '
            "while plain JSON readers keep the last value without a word"
        )
    else:
        message = f'the key "{key}" stands twice in the same object; only the last value counts'
    help = f'keep one "{key}" and delete the other'
    return Diagnostic("DSC003", TWICE, effect, message, pointer, place, help=help)


START = Range(Position(1, 1), Position(1, 1))


def empty_text() -> Diagnostic:
    """The file holds nothing."""
    message = "the file is empty; DeepSpeed reads it as {} and stops for want of a batch size"
    help = 'write at least {"train_batch_size": 8}, or run `dsconfig init`'
    return Diagnostic("DSC004", "empty-config", Effect.REFUSED, message, range=START, help=help)


def not_an_object(kind: str, place: Range | None) -> Diagnostic:
    """The root is a list or a single value."""
    message = f"the config is {kind}, not an object of keys and values; every program stops"
    help = 'a config starts with "{" and holds entries like "train_batch_size": 8'
    return Diagnostic("DSC005", "not-an-object", Effect.REFUSED, message, range=place, help=help)


def swallowed_line(pointer: str, place: Range, text: str, fix: Fix | None) -> Diagnostic:
    """Text without quotes took punctuation or a comment into the value."""
    message = (
        f"a value without quotes takes everything up to the end of its line: "
        f"the value here is the text {quoted(text)}"
    )
    help = "put quotes around the text, or write one entry per line"
    return Diagnostic(
        "DSC006", "swallowed-line", Effect.ALTERED, message, pointer, place, help=help, fix=fix
    )


def not_a_number(pointer: str, place: Range, word: str) -> Diagnostic:
    """NaN or Infinity without quotes."""
    message = (
        f"{word} is no JSON number: DeepSpeed's reader makes it a text that takes the rest "
        "of the line, other programs a float"
    )
    help = "write a number"
    return Diagnostic(
        "DSC007", "nan-or-infinity", Effect.ALTERED, message, pointer, place, help=help
    )


def template(count: int) -> Diagnostic:
    """The file holds placeholders that some other program fills in."""
    keys = "1 placeholder" if count == 1 else f"{count} placeholders"
    message = f"this is a template with {keys}; what stands in their place is not judged"
    help = "validate the file that your launcher writes from it as well"
    return Diagnostic("DSC008", "template-file", Effect.NOTE, message, range=START, help=help)


def no_config_inside(message: str, help: str) -> Diagnostic:
    """A YAML or Python file that holds no ds_config."""
    return Diagnostic(NO_CONFIG, NO_CONFIG_NAME, Effect.REFUSED, message, range=START, help=help)


def no_config_named(why: str = "it trains without DeepSpeed", key: str = "deepspeed") -> Diagnostic:
    """A trainer's YAML that names no file of a ds_config; ``key`` is the one that would."""
    message = f"this file names no ds_config: {why}"
    help = f"name a file under the key {key}, or leave this one out"
    return Diagnostic(NO_CONFIG, NO_CONFIG_NAME, Effect.NOTE, message, range=START, help=help)


def another_kind(name: str, effect: Effect, help: str) -> Diagnostic:
    """A file that is no ds_config; the effect is that of what it would lead to."""
    message = f"this is {name}, not a ds_config: {effect.meaning}"
    return Diagnostic("DSC012", "another-kind-of-file", effect, message, range=START, help=help)


def replacement(place: Range, content: str) -> Fix:
    """A safe fix that writes ``content`` over ``place``."""
    return Fix(Applicability.SAFE, (Edit(place, content),))
