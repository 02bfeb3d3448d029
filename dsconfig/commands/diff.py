"""``dsconfig diff``: two configs, or one config under two releases, compared by meaning."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsconfig.commands import options
from dsconfig.commands.errors import UsageError, usage
from dsconfig.commands.writing import write
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Effect
from dsconfig.source.pointer import is_block

with lazy_imports():
    from dsconfig.commands import differences, moves, pinning, text_table


if TYPE_CHECKING:
    from dsconfig.commands.differences import Change
    from dsconfig.commands.moves import Move
    from dsconfig.schema.version import Version
    from dsconfig.source import Document


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A config; - reads stdin.")],
    b: Annotated[
        str | None, typer.Argument(metavar="[B]", help="The config to compare it with.")
    ] = None,
    from_version: Annotated[
        str | None, typer.Option(metavar="X.Y.Z", help="The release in use.")
    ] = None,
    to_version: Annotated[
        str | None, typer.Option(metavar="X.Y.Z", help="The release to move to.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="PATH=VALUE", help="Override a key of A, not of B (repeatable)."
        ),
    ] = None,
    pin: Annotated[
        bool,
        typer.Option("--pin", help="Write the file that means at --to-version what it means now."),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Of --pin: not to stdout.")
    ] = None,
    output_format: options.FullOrJson = "full",
) -> None:
    """Compare by meaning: defaults filled in, aliases and renames undone.

    With two files: what trains differently. With one file and two releases of DeepSpeed: what
    the move changes for it, and with --pin the file that means under the second release what it
    meant under the first; what no file can keep is told on stderr. Exit code 1 where there is a
    difference.
    """
    if b is None and from_version is None:
        raise UsageError("name a second file, or --from-version (and --to-version) for one")
    before = options.release(from_version, option="--from-version")
    after = (
        options.release(to_version, option="--to-version") if to_version or b is None else before
    )
    first = options.load(a, overrides)
    if pin:
        _pin(first, b, before, after, output)
        return
    if output is not None:
        raise UsageError("-o is for --pin")
    if b is None:
        _mapping(first)
        changes = moves.moves(first, before, after)
    else:
        second = options.load(b, overrides)
        changes = differences.between_configs(_mapping(first), _mapping(second), before, after)
    typer.echo(as_json(changes) if output_format == "json" else text_table.fitted(as_text(changes)))
    if changes:
        raise typer.Exit(1)


def _pin(
    first: "Document", b: str | None, before: "Version", after: "Version", output: Path | None
) -> None:
    if b is not None:
        raise UsageError("--pin takes one file and --from-version")
    _mapping(first)
    with usage("--pin"):
        pinned = pinning.pinned(first, before, after)
    write(output, pinned.text or "")
    for move in moves.moves(pinned, before, after):
        typer.echo(f"not kept: {move}", err=True)


def _mapping(document: "Document") -> dict[str, Any]:
    value: object = document.value
    broken = [found for found in document.diagnostics if found.effect is Effect.REFUSED]
    if not is_block(value) or broken:
        what = broken[0].message if broken else "it is not a mapping"
        raise UsageError(f"{document.name} cannot be compared: {what}")
    return value


def as_text(changes: Iterable["Change | Move"]) -> str:
    """One change per line, for a terminal."""
    return "\n".join(map(str, changes)) or "no difference in meaning"


def as_json(changes: Iterable["Change | Move"]) -> str:
    return json.dumps(
        {"format_version": "1.0", "changes": [asdict(change) for change in changes]},
        indent=2,
        ensure_ascii=False,
    )
