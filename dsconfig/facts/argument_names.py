"""Arguments of the library in place of command-line flags, in messages."""

import re

from dsconfig.facts.request import DECLARED

_FLAG_OR_COMMAND = re.compile(
    r"`[^`]*`|--([a-z]+(?:-[a-z]+)*)\b(?: (deepspeed|transformers|accelerate|dsengine|none)\b)?"
)


def in_arguments(message: str) -> str:
    """Return a message with arguments of the library in place of command-line flags, except in
    commands and for flags of other programs."""
    return _FLAG_OR_COMMAND.sub(_argument_for, message)


def _argument_for(match: re.Match[str]) -> str:
    argument = match[1] and argument_of(match[1])
    if argument not in (*DECLARED, "runtime", "version"):
        return match[0]
    return f"{argument}=" + (f'"{match[2]}"' if match[2] else "")


def argument_of(flag: str) -> str:
    """Return the argument of the library for a command-line flag without its dashes."""
    if flag == "deepspeed-version":
        return "version"
    named = (name for name, declared in DECLARED.items() if f"--{flag}" in declared.flags)
    return next(named, flag.replace("-", "_"))
