"""The ledger for people: what was filled in, with what, and why.

Laid out here rather than by rich, whose import alone takes a third of the whole command.
"""

import json
from collections.abc import Iterable
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from dsconfig.commands.text_table import emphasised
from dsconfig.report.render.terminal import one_line
from dsconfig.source.pointer import dotted, is_block

if TYPE_CHECKING:
    from dsconfig.resolver.resolution import LedgerEntry, Resolution

NARROW = 110
"""Below this many columns a table would break every word; entries are listed instead."""
_WIDEST_KEY, _WIDEST_VALUE = 60, 24


def ledger(resolution: "Resolution", width: int) -> str:
    """A table, or a list on a narrow terminal; ``width`` in columns."""
    if not resolution.ledger:
        return f'Nothing was "auto" and nothing had to be derived ({resolution.runtime}).'
    title = f"Resolved for {resolution.runtime}"
    rows = _listed(resolution, width) if width < NARROW else _table(resolution, width)
    return "\n".join(line.rstrip() for line in (title, *rows))


def _table(resolution: "Resolution", width: int) -> Iterable[str]:
    cells = [
        tuple(map(one_line, (dotted(each.pointer), shown(each.value), each.source, because(each))))
        for each in resolution.ledger
    ]
    widths = [
        min(widest, max(len(heading), *(len(row[column]) for row in cells)))
        for column, (heading, widest) in enumerate(
            (("key", _WIDEST_KEY), ("value", _WIDEST_VALUE), ("from", 10))
        )
    ]
    rest = width - sum(widths) - 6
    yield _line(widths, ("key", "value", "from", "because"))
    for key, value, source, reason in cells:
        columns = [wrap(key, widths[0]), wrap(value, widths[1]), [source], wrap(reason, rest)]
        for index in range(max(map(len, columns))):
            cell = tuple(lines[index] if index < len(lines) else "" for lines in columns)
            yield _line(widths, cell)


def _line(widths: list[int], cells: tuple[str, ...]) -> str:
    key, value, source, reason = cells
    bold = emphasised(f"{value:>{widths[1]}}")
    return f"{key:<{widths[0]}}  {bold}  {source:<{widths[2]}}  {reason}"


def _listed(resolution: "Resolution", width: int) -> Iterable[str]:
    for entry in resolution.ledger:
        pointer, value = one_line(dotted(entry.pointer)), one_line(shown(entry.value))
        yield f"{pointer} = {emphasised(value)}"
        reason = one_line(f"{entry.source}: {because(entry)}")
        yield from wrap(reason, width, initial_indent="  ", subsequent_indent="  ")


def explained(entry: "LedgerEntry") -> str:
    """Everything about one entry, for ``--explain``: the rule, then each input on a line."""
    lines = [
        f"{dotted(entry.pointer)} = {shown(entry.value)}",
        f"  source: {entry.source}",
        f"  rule:   {entry.rule}",
    ]
    for name, value in entry.inputs.items():
        if is_block(value):
            lines.append(f"  {name}:")
            lines += [f"    {key}: {shown(child)}" for key, child in value.items()]
        else:
            lines.append(f"  {name}: {shown(value)}")
    return "\n".join(map(one_line, lines))


def because(entry: "LedgerEntry") -> str:
    """The rule with its plain inputs; long records are left to ``--explain``."""
    short = [
        f"{name}={shown(value)}"
        for name, value in entry.inputs.items()
        if value is not None and not isinstance(value, dict)
    ]
    return f"{entry.rule} ({', '.join(short)})" if short else entry.rule


def shown(value: Any) -> str:
    """A value as JSON writes it, large integers in groups of three."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 100_000:
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)
