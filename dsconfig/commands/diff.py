"""``dsconfig diff``: two configs, or one config under two releases, compared by meaning."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from dsconfig.commands import options
from dsconfig.commands.errors import UsageError
from dsconfig.lazily import lazily
from dsconfig.report import Effect

with lazily():
    from dsconfig.commands import differences, text_table


if TYPE_CHECKING:
    from dsconfig.commands.differences import Change
    from dsconfig.source import Document

First = Annotated[str, typer.Argument(metavar="A", help="A config; - reads stdin.")]
Second = Annotated[str | None, typer.Argument(metavar="[B]", help="The config to compare it with.")]
FromVersion = Annotated[
    str | None, typer.Option("--from-version", metavar="X.Y.Z", help="The release in use.")
]
ToVersion = Annotated[
    str | None, typer.Option("--to-version", metavar="X.Y.Z", help="The release to move to.")
]


OfTheFirst = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override a key of A, not of B (repeatable)."),
]


def diff(
    a: First,
    b: Second = None,
    from_version: FromVersion = None,
    to_version: ToVersion = None,
    overrides: OfTheFirst = None,
    output_format: options.FullOrJson = "full",
) -> None:
    """Compare by meaning: defaults filled in, aliases and renames undone.

    With two files: what trains differently. With one file and two releases of DeepSpeed: what
    the move changes for it. Exit code 1 where there is a difference.
    """
    if b is None and from_version is None:
        raise UsageError("name a second file, or --from-version (and --to-version) for one")
    before = options.release(from_version, option="--from-version")
    after = (
        options.release(to_version, option="--to-version") if to_version or b is None else before
    )
    first = options.load(a, overrides)
    if b is None:
        changes = differences.between_releases(_mapping(first), first, before, after)
    else:
        second = options.load(b, overrides)
        changes = differences.between_configs(_mapping(first), _mapping(second), before, after)
    typer.echo(as_json(changes) if output_format == "json" else text_table.fitted(as_text(changes)))
    if changes:
        raise typer.Exit(1)


def _mapping(document: "Document") -> dict[str, Any]:
    value: object = document.value
    broken = [found for found in document.diagnostics if found.effect is Effect.REFUSED]
    if not isinstance(value, dict) or broken:
        what = broken[0].message if broken else "it is not a mapping"
        raise UsageError(f"{document.name} cannot be compared: {what}")
    return cast(dict[str, Any], value)


def as_text(changes: Iterable["Change"]) -> str:
    """One change per line, for a terminal."""
    lines = [f"{change}" for change in changes]
    return "\n".join(lines) if lines else "no difference in meaning"


def as_json(changes: Iterable["Change"]) -> str:
    return json.dumps(
        {"format_version": "1.0", "changes": [asdict(change) for change in changes]},
        indent=2,
        ensure_ascii=False,
    )
