"""What a message calls a fact of the run, by where the message is read.

[Note: names of facts] A rule, the resolver and the estimate say ``named("gpus")`` where they mean
the number of ranks. The command line reads ``--gpus``, a caller of the library ``gpus=``, an editor
the setting ``devices``, and the page the label of its field. Entry points choose the surface once;
nothing rewrites a finished message.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum

from dsconfig.facts.request import DECLARED, flag_of


class Surface(StrEnum):
    """Where messages are read."""

    COMMAND_LINE = "command line"
    LIBRARY = "library"
    SETTINGS = "settings"
    """An editor, which takes some facts from ``[tool.dsconfig]``."""
    PAGE = "page"


_current: ContextVar[Surface] = ContextVar("surface", default=Surface.LIBRARY)


def current() -> Surface:
    """Return where messages are read."""
    return _current.get()


@contextmanager
def read_on(surface: Surface) -> Generator[None]:
    """Name facts as a surface does, within the context."""
    before = _current.set(surface)
    try:
        yield
    finally:
        _current.reset(before)


def use(surface: Surface) -> None:
    """Name facts as a surface does, in the rest of this process."""
    _current.set(surface)


def named(argument: str, value: object = None) -> str:
    """Return what a reader writes to state a fact, with a value if there is one: ``--gpus 8``,
    ``gpus=8``."""
    match _current.get():
        case Surface.COMMAND_LINE:
            return _flag(argument, value)
        case Surface.LIBRARY:
            text = f'"{value}"' if isinstance(value, str) else value
            return f"{argument}={'' if value is None else text}"
        case Surface.SETTINGS:
            key = _SETTINGS.get(argument)
            return f"the setting {key}" if key else _flag(argument, value)
        case Surface.PAGE:
            label = label_of(argument)
            return f'"{label}"' if value is None else f'"{label}": {value}'


_SETTINGS = {
    "model": "model",
    "gpus": "devices",
    "device": "devices",
    "runtime": "runtime",
    "version": "deepspeed-version",
}
"""Keys of ``[tool.dsconfig]``; the other facts are flags of ``validate``."""


def _flag(argument: str, value: object) -> str:
    flag = flag_of(argument)
    return flag if value is None else f"{flag} {value}"


def is_name_of(origin: str | None, argument: str) -> bool:
    """Return whether an origin is a fact as stated, on any surface."""
    return origin in (flag_of(argument), f"{argument}=", f'"{label_of(argument)}"')


def subject(argument: str) -> str:
    """Return the beginning of an error about the value of a fact: ``--gpus``, ``gpus``."""
    match _current.get():
        case Surface.COMMAND_LINE:
            return flag_of(argument)
        case Surface.PAGE:
            return label_of(argument)
        case _:
            return argument


def label_of(argument: str) -> str:
    """Return the label of the field of a fact on the page."""
    declared = DECLARED.get(argument)
    label = declared.label if declared else _OTHERS.get(argument)
    return label or argument.replace("_", " ").capitalize()


_OTHERS = {"runtime": "Program", "version": "DeepSpeed"}
"""Labels of fields for other arguments of the library."""
