"""Diagnostics of the reader, one function per code, and matching of rule selectors."""

import json
from collections.abc import Mapping
from typing import Any

from dsconfig.report import Applicability, Diagnostic, Edit, Effect, Fix, Position, Range, writers
from dsconfig.schema.paths import KeyPath
from dsconfig.source.pointer import dotted, split

UNREADABLE = "DSC001"
SYNTAX = "DSC002"
NO_CONFIG, NO_CONFIG_NAME = "DSC009", "no-config-inside"
LARGE_INTEGER = "DSC013"
NEVER_IGNORED = (UNREADABLE, SYNTAX)


RETIRED: Mapping[str, str] = {
    "DSC151": "DSC005",
    "DSC250": "DSC202",
    "DSC750": "DSC101",
    "DSC751": "DSC756",
    "DSC757": "DSC101",
    "DSC758": "DSC703",
    "DSC760": "DSC704",
    "DSC761": "DSC704",
    "not-a-config": "not-an-object",
    "batch-type": "batch-not-positive",
    "auto-dropped": "auto-unresolved",
    "auto-left-in": "auto-unresolved",
    "micro-batch-from-eval-loader": "accumulation-overruled",
    "files-disagree": "conflicting-sources",
    "program-stops": "integration-error",
    "deepspeed-stops": "integration-error",
}
"""Codes and names of earlier releases, and the one that reports the same now."""


def current(code_or_name: str) -> str:
    """Return a code or name in its usual letter case, that of today if it is retired."""
    is_code = code_or_name[:3].upper() == "DSC"
    name = code_or_name.upper() if is_code else code_or_name.lower()
    return RETIRED.get(name, name)


def matches(selector: str, finding: Diagnostic) -> bool:
    """Return whether a selector (code, code prefix or rule name) matches a finding."""
    wanted = current(selector.strip())
    return finding.code.startswith(wanted) if wanted[:3] == "DSC" else wanted == finding.name


def quoted(text: str) -> str:
    """Return a string as a JSON literal."""
    return json.dumps(text, ensure_ascii=False)


def unreadable(message: str, help: str) -> Diagnostic:
    """Return the finding for input that is missing, binary, too large or too deep."""
    return Diagnostic(UNREADABLE, "unreadable-input", Effect.REFUSED, message, help=help)


def syntax_error(
    message: str, pointer: str, place: Range, help: str | None = None, fix: Fix | None = None
) -> Diagnostic:
    """Return the finding for a syntax error, at which DeepSpeed's HJSON parser stops."""
    return Diagnostic(
        SYNTAX, "syntax-error", Effect.REFUSED, message, pointer, place, help=help, fix=fix
    )


DUPLICATE = "duplicate-key"


def duplicate_key(pointer: str, place: Range, *, in_file: bool) -> Diagnostic:
    """Return the finding for a key that appears twice in an object."""
    key = split(pointer)[-1]
    effect = Effect.REFUSED if in_file else Effect.ALTERED
    if in_file:
        message = (
            f'duplicate key "{key}"; DeepSpeed rejects the file, while JSON parsers silently keep '
            "the last value"
        )
    else:
        message = f'duplicate key "{key}"; only the last value is used'
    help = f'keep one "{key}" and delete the other'
    return Diagnostic("DSC003", DUPLICATE, effect, message, pointer, place, help=help)


START = Range(Position(1, 1), Position(1, 1))


def empty_text() -> Diagnostic:
    """Return the finding for an empty file."""
    message = "empty file; DeepSpeed reads it as {} and stops because no batch size is set"
    help = 'write at least {"train_batch_size": 8}, or run `dsconfig init`'
    return Diagnostic("DSC004", "empty-config", Effect.REFUSED, message, range=START, help=help)


def not_an_object(kind: str, place: Range | None) -> Diagnostic:
    """Return the finding for a root that is a list or a scalar."""
    message = f"expected an object, found {kind}; every program stops"
    help = 'a config starts with "{" and contains entries like "train_batch_size": 8'
    return Diagnostic("DSC005", "not-an-object", Effect.REFUSED, message, range=place, help=help)


def python_literal(word: str, json_word: str) -> str:
    """Return the message for True, False or None in a config."""
    return f"Python literal {word}; JSON uses {json_word}"


def not_json(place: Range, object_line: int | None) -> Diagnostic:
    """Return the finding for a text that is not JSON; ``object_line`` is the first config in it."""
    if object_line is None:
        message, help = "not JSON: the text contains no object", 'a config starts with "{"'
    else:
        message = f"not JSON; an object starts at line {object_line}"
        help = f"remove the text before line {object_line} and after the object"
    return syntax_error(message, "", place, help)


def unquoted_string(
    pointer: str, place: Range, text: str, fix: Fix | None, python: str = ""
) -> Diagnostic:
    """Return the finding for an unquoted string that includes punctuation or a comment.

    ``python`` is the message for a Python literal.
    """
    message = f"unquoted string extends to the end of the line: DeepSpeed reads {quoted(text)}"
    help = "quote the string, or write one entry per line"
    if python:
        message = f"{python}: DeepSpeed reads the string {quoted(text)}"
        help = f"write {python.rpartition(' ')[2]}"
    return Diagnostic(
        "DSC006", "unquoted-string", Effect.ALTERED, message, pointer, place, help=help, fix=fix
    )


def number_word(word: str) -> str:
    """Return the message for NaN or Infinity."""
    return (
        f"{word} is not a JSON number: DeepSpeed reads a string up to the end of the line, "
        "transformers and accelerate read a float"
    )


def not_a_number(pointer: str, place: Range, word: str) -> Diagnostic:
    """Return the finding for an unquoted NaN or Infinity."""
    message = number_word(word)
    help = "write a number"
    return Diagnostic(
        "DSC007", "nan-or-infinity", Effect.ALTERED, message, pointer, place, help=help
    )


OVERFLOWS = (
    "programs that compute with it raise an OverflowError, because the largest float is 1.8e308"
)


def large_integer(pointer: str, shown: str, place: Range | None) -> Diagnostic:
    """Return the finding for an integer outside the range of a float; ``shown`` describes it."""
    name = f'"{dotted(pointer)}"' if pointer else "the config"
    return Diagnostic(
        LARGE_INTEGER,
        "large-integer",
        Effect.REFUSED,
        f"{name} is {shown}: {OVERFLOWS}",
        pointer,
        place,
        help="write a smaller number",
    )


def template(count: int) -> Diagnostic:
    """Return the note for a template."""
    keys = "1 placeholder" if count == 1 else f"{count} placeholders"
    message = f"template with {keys}; their values are not checked"
    help = "also validate the file that your launcher generates from it"
    return Diagnostic("DSC008", "template-file", Effect.NOTE, message, range=START, help=help)


def no_config_inside(message: str, help: str, effect: Effect = Effect.REFUSED) -> Diagnostic:
    """Return the finding for a file without a ds_config."""
    return Diagnostic(NO_CONFIG, NO_CONFIG_NAME, effect, message, range=START, help=help)


def no_config_named(why: str = "it trains without DeepSpeed", key: str = "deepspeed") -> Diagnostic:
    """Return the note for a trainer's YAML that names no ds_config under ``key``."""
    message = f"this file does not name a ds_config: {why}"
    help = f"set {writers.code(key)} to the path of a config, or do not validate this file"
    return Diagnostic(NO_CONFIG, NO_CONFIG_NAME, Effect.NOTE, message, range=START, help=help)


def blank_after_backslash(range: Range, file: str | None) -> Diagnostic:
    """Return the finding for a line of a script that is not continued; ``file`` is the script, if
    it is not the checked file."""
    message = (
        "a blank follows the backslash: the command ends here, and the options on the next lines "
        "are not passed"
    )
    return Diagnostic(
        "DSC014",
        "blank-after-backslash",
        Effect.ALTERED,
        message,
        range=range,
        help="delete the blanks at the end of the line",
        file=file,
    )


def launch_conflict(
    code: str, effect: Effect, message: str, help: str, range: Range, file: str | None
) -> Diagnostic:
    """Return the finding for what a training command states in two ways."""
    return Diagnostic(
        code, LAUNCH_CONFLICTS[code], effect, message, range=range, help=help, file=file
    )


def written_twice(
    path: KeyPath, old: Any, new: str, program: str, place: Range | None, *, is_kept: bool
) -> Diagnostic:
    """Return the finding for a key of a ds_config that its program sets to another value.

    ``new``: that value and where it is; ``is_kept``: the program leaves the config as it is.
    """
    code = "DSC714"
    if is_kept:
        message = f"{path} is {old}, which DeepSpeed uses; {program} divides the batch by {new}"
    else:
        message = f"{path} is {old}, but {program} writes {new} into the config"
    effect = Effect.ALTERED if is_kept else Effect.INERT
    help = "write the same value in both, or delete one"
    return Diagnostic(
        code, LAUNCH_CONFLICTS[code], effect, message, path.pointer, range=place, help=help
    )


LAUNCH_CONFLICTS = {
    "DSC710": "visible-devices-ignored",
    "DSC711": "nodes-not-joined",
    "DSC712": "ranks-without-devices",
    "DSC713": "launch-type-overridden",
    "DSC714": "launch-setting-unused",
    "DSC715": "option-given-twice",
    "DSC717": "command-rejected",
}
"""Names of the findings about training commands."""


def another_kind(name: str, effect: Effect, help: str) -> Diagnostic:
    """Return the finding for a file of another kind; ``effect`` is that of passing it on."""
    message = f"this is {name}, not a ds_config: {effect.meaning}"
    return Diagnostic("DSC012", "wrong-kind-of-file", effect, message, range=START, help=help)


def replacement(place: Range, content: str) -> Fix:
    """Return a safe fix that replaces ``place`` with ``content``."""
    return Fix(Applicability.SAFE, (Edit(place, content),))
