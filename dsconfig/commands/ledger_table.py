"""The ledger for people: what was filled in, with what, and why."""

from typing import TYPE_CHECKING, Any

from dsconfig.source.pointer import dotted

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

    from dsconfig.resolver.resolution import LedgerEntry, Resolution

NARROW = 90
"""Below this many columns a table would break every word; entries are listed instead."""


def ledger(resolution: "Resolution", width: int) -> "RenderableType":
    """A table, or a list on a narrow terminal."""
    if not resolution.ledger:
        return f'Nothing was "auto" and nothing had to be derived ({resolution.runtime}).'
    return _listed(resolution) if width < NARROW else _table(resolution)


def _table(resolution: "Resolution") -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"Resolved for {resolution.runtime}", title_justify="left", box=None)
    table.add_column("key", overflow="fold")
    table.add_column("value", overflow="fold", justify="right")
    table.add_column("from")
    table.add_column("because", overflow="fold", ratio=1)
    for entry in resolution.ledger:
        table.add_row(
            Text(dotted(entry.pointer)),
            Text(shown(entry.value), style="bold"),
            Text(str(entry.source)),
            Text(because(entry)),
        )
    return table


def _listed(resolution: "Resolution") -> "Group":
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    rows: list[Any] = [Text(f"Resolved for {resolution.runtime}")]
    for entry in resolution.ledger:
        rows.append(Text(f"{dotted(entry.pointer)} = {shown(entry.value)}", style="bold"))
        rows.append(Padding(Text(f"{entry.source}: {because(entry)}"), (0, 0, 0, 2)))
    return Group(*rows)


def explained(entry: "LedgerEntry") -> str:
    """Everything about one entry, for ``--explain``: the rule, then each input on a line."""
    lines = [
        f"{dotted(entry.pointer)} = {shown(entry.value)}",
        f"  source: {entry.source}",
        f"  rule:   {entry.rule}",
    ]
    for name, value in entry.inputs.items():
        if isinstance(value, dict):
            lines.append(f"  {name}:")
            lines += [f"    {key}: {shown(child)}" for key, child in value.items()]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        else:
            lines.append(f"  {name}: {shown(value)}")
    return "\n".join(lines)


def because(entry: "LedgerEntry") -> str:
    """The rule with its plain inputs; long records are left to ``--explain``."""
    short = [
        f"{name}={shown(value)}"
        for name, value in entry.inputs.items()
        if value is not None and not isinstance(value, dict)
    ]
    return f"{entry.rule} ({', '.join(short)})" if short else entry.rule


def shown(value: Any) -> str:
    """A value as JSON writes it, large integers with thin groups."""
    import json

    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 100_000:
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)
