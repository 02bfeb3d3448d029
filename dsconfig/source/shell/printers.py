"""Output of the commands whose output is known without running them: ``wc``, ``expr``, ``tr``."""

import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Protocol


class Shell(Protocol):
    """What a command uses of the shell; ``read`` returns the text of a file, or None."""

    @property
    def folder(self) -> str: ...

    @folder.setter
    def folder(self, folder: str) -> None: ...

    def arithmetic(self, text: str) -> int | None: ...

    def read(self, name: str, /) -> str | None: ...


_DIRECTIVE = re.compile(r"%[sd]")


def _expr(arguments: list[str], given: str, shell: Shell) -> str | None:
    del given
    value = shell.arithmetic(" ".join(arguments).replace("\\*", "*"))
    return None if value is None else f"{value}\n"


def _echo(arguments: list[str], given: str, shell: Shell) -> str:
    del given, shell
    while arguments and arguments[0] in ("-n", "-e", "-ne", "-en"):
        arguments = arguments[1:]
    return " ".join(arguments) + "\n"


def _printf(arguments: list[str], given: str, shell: Shell) -> str | None:
    del given, shell
    if not arguments or _DIRECTIVE.sub("", arguments[0]).count("%"):
        return None
    form, *values = arguments
    count = max(len(_DIRECTIVE.findall(form)), 1)
    pieces: list[str] = []
    for at in range(0, max(len(values), 1), count):
        following = iter(values[at : at + count])
        pieces.append(_DIRECTIVE.sub(lambda _, more=following: next(more, ""), form))
    return "".join(pieces).replace("\\n", "\n")


def _path(of: Callable[[PurePosixPath], object]) -> "Callable[[list[str], str, Shell], str]":
    def printed(arguments: list[str], given: str, shell: Shell) -> str:
        del given, shell
        named = [each for each in arguments if not each.startswith("-")]
        return f"{of(PurePosixPath(named[0] if named else '.'))}\n"

    return printed


def _pwd(arguments: list[str], given: str, shell: Shell) -> str:
    del arguments, given
    return f"{shell.folder or '.'}\n"


def _cd(arguments: list[str], given: str, shell: Shell) -> str:
    del given
    if arguments:
        shell.folder = str(PurePosixPath(shell.folder) / arguments[-1])
    return ""


def _wc(arguments: list[str], given: str, shell: Shell) -> str | None:
    del shell
    counts = {"-l": given.count("\n"), "-w": len(given.split())}
    return f"{counts[arguments[0]]}\n" if len(arguments) == 1 and arguments[0] in counts else None


def _tr(arguments: list[str], given: str, shell: Shell) -> str | None:
    del shell
    named = [each.replace("\\n", "\n") for each in arguments if not each.startswith("-")]
    if arguments[:1] == ["-d"] and len(named) == 1:
        return given.translate({ord(letter): None for letter in named[0]})
    if len(named) == 2 and len(named[0]) == len(named[1]) == 1:
        return given.replace(named[0], named[1])
    return None


def _awk(arguments: list[str], given: str, shell: Shell) -> str | None:
    del shell
    program = arguments[-1].replace(" ", "") if arguments else ""
    separator = next((each[2:] for each in arguments if each.startswith("-F")), "")
    separator = separator or (arguments[1] if arguments[:1] == ["-F"] else "")
    if program != "{printNF}":
        return None
    return "".join(f"{len(line.split(separator or None))}\n" for line in given.splitlines())


def _cat(arguments: list[str], given: str, shell: Shell) -> str | None:
    named = [each for each in arguments if not each.startswith("-")]
    if not named:
        return given
    texts = [shell.read(name) for name in named]
    return None if None in texts else "".join(text or "" for text in texts)


def _seq(arguments: list[str], given: str, shell: Shell) -> str | None:
    del given, shell
    if not all(each.isdigit() and len(each) < 5 for each in arguments) or not arguments:
        return None
    first = int(arguments[0]) if len(arguments) > 1 else 1
    return "".join(f"{number}\n" for number in range(first, int(arguments[-1]) + 1))


PRINTERS: "Mapping[str, Callable[[list[str], str, Shell], str | None]]" = {
    "expr": _expr,
    "echo": _echo,
    "printf": _printf,
    "dirname": _path(lambda path: path.parent),
    "basename": _path(lambda path: path.name),
    "realpath": _path(lambda path: path),
    "readlink": _path(lambda path: path),
    "pwd": _pwd,
    "cd": _cd,
    "wc": _wc,
    "tr": _tr,
    "awk": _awk,
    "cat": _cat,
    "seq": _seq,
}
