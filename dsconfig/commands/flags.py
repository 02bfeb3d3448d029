"""Flags from declarations: facts, groups of options, and those that every command has."""

from collections.abc import Callable, Container, Iterator
from functools import wraps
from inspect import Parameter, signature
from itertools import chain
from typing import Annotated, Any, NamedTuple, get_args

import typer

from dsconfig.commands import completion, notes, overwriting
from dsconfig.facts.request import DECLARED, DEFAULTS, Declaration, FactsRequest

Command = Callable[..., Any]
PANEL = "Model, hardware and training"
"""Panel of the help with the facts."""
_COMPLETIONS = {"devices": completion.devices, "models": completion.models}


class Only:
    """The facts of a command that does not take all of them, and its own defaults of some."""

    def __init__(self, names: str, **defaults: object) -> None:
        self.defaults = {name: defaults.get(name, DEFAULTS[name]) for name in names.split()}


class _Group(NamedTuple):
    """Flags that a command gets as one parameter."""

    flags: list[Parameter]
    build: Callable[..., Any]


def command_of(function: Command) -> Command:
    """Return a command whose parameters are flags, as Typer reads them, for a function.

    A FactsRequest and a NamedTuple become one flag per field. All commands get ``--quiet``, and
    those that write the file of ``-o`` get ``--force``.
    """
    own = signature(function)
    groups = {
        name: group
        for name, parameter in own.parameters.items()
        if (group := _group_of(parameter.annotation))
    }
    grouped = (
        groups[name].flags if name in groups else [parameter]
        for name, parameter in own.parameters.items()
    )
    flags = {flag.name: flag for flag in chain.from_iterable(grouped)}
    common = list(_common_flags(flags))

    @wraps(function)
    def command(**values: Any) -> Any:
        stated = {flag.name: values.pop(flag.name) for flag in common}
        if "quiet" in stated:
            notes.set_quiet(stated["quiet"])
        if "force" in stated:
            overwriting.refuse_existing(values[overwriting.OUTPUT], force=stated["force"])
        for name, (fields, build) in groups.items():
            values[name] = build(**{field.name: values.pop(field.name) for field in fields})
        return function(**values)

    listed = [flag.replace(kind=Parameter.KEYWORD_ONLY) for flag in (*flags.values(), *common)]
    command.__signature__ = own.replace(parameters=listed)  # type: ignore[attr-defined]
    command.__annotations__ = {flag.name: flag.annotation for flag in listed}
    return command


def _common_flags(flags: Container[str]) -> Iterator[Parameter]:
    """Yield the flags that a command has besides its own."""
    if overwriting.OUTPUT in flags:
        yield _flag("force", overwriting.Force, False)
    if "quiet" not in flags:
        yield _flag("quiet", notes.Quiet, False)


def _group_of(annotation: Any) -> _Group | None:
    if hasattr(annotation, "_fields"):
        return _Group([*signature(annotation).parameters.values()], annotation)
    if annotation is FactsRequest:
        return _Group(list(_fact_flags(DEFAULTS)), FactsRequest)
    only = next((each for each in get_args(annotation) if isinstance(each, Only)), None)
    return only and _Group(list(_fact_flags(only.defaults)), FactsRequest)


def _flag(name: str, annotation: Any, default: object) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _fact_flags(defaults: Any) -> Iterator[Parameter]:
    """Yield the flag of each fact with these defaults."""
    for name, default in defaults.items():
        declared = DECLARED[name]
        kind: Any = list[str] if declared.kind is list else declared.kind
        # Only a flag without a default can be left out.
        kind = kind if DEFAULTS[name] is not None else kind | None
        yield _flag(name, Annotated[kind, _option(name, declared)], default)


def _option(name: str, declared: Declaration) -> Any:
    names = declared.flags or ((f"--{name.replace('_', '-')}",) if declared.kind is bool else ())
    return typer.Option(
        *names,
        help=declared.help,
        metavar=declared.placeholder,
        autocompletion=_COMPLETIONS.get(declared.completed_from),
        min=declared.least,
        max=declared.most,
        rich_help_panel=PANEL,
    )
