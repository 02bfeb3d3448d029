"""Terminal output of the ledger: each resolved key with its value and source.

Not based on rich, because importing it takes a third of the run time of the command.
"""

import json
from collections.abc import Iterable, Mapping
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from dsconfig.commands.text_table import emphasised
from dsconfig.report.writers import one_line
from dsconfig.source.pointer import dotted, is_block

if TYPE_CHECKING:
    from dsconfig.resolver.resolution import LedgerEntry, Resolution

NARROW = 110
"""Columns below which entries are listed instead of shown as a table."""
_WIDEST_KEY, _WIDEST_VALUE = 60, 24
_NAMES: Mapping[str, str] = {
    "training": "training run",
    "hardware": "GPUs",
    "memory": "memory limit",
    "derived": "calculated",
}
"""Sources as shown, where the name in JSON is not clear by itself."""


def source_of(entry: "LedgerEntry") -> str:
    """Return what determined a value, such as ``training run``."""
    return _NAMES.get(entry.source, entry.source)


def ledger(resolution: "Resolution", width: int) -> str:
    """Return a table, or a list on a narrow terminal; ``width`` in columns."""
    if not resolution.ledger:
        return 'Nothing to resolve: no "auto" values, no missing values.'
    rows = _listed(resolution, width) if width < NARROW else _table(resolution, width)
    return "\n".join(line.rstrip() for line in rows)


def _table(resolution: "Resolution", width: int) -> Iterable[str]:
    cells = [
        tuple(map(one_line, (dotted(row.pointer), shown(row.value), source_of(row), reason(row))))
        for row in resolution.ledger
    ]
    widths = [
        min(widest, max(len(heading), *(len(row[column]) for row in cells)))
        for column, (heading, widest) in enumerate(
            (("key", _WIDEST_KEY), ("value", _WIDEST_VALUE), ("source", 12))
        )
    ]
    rest = width - sum(widths) - 6
    yield _line(widths, ("key", "value", "source", "reason"))
    for key, value, source, text in cells:
        columns = [wrap(key, widths[0]), wrap(value, widths[1]), [source], wrap(text, rest)]
        for index in range(max(map(len, columns))):
            cell = tuple(lines[index] if index < len(lines) else "" for lines in columns)
            yield _line(widths, cell)


def _line(widths: list[int], cells: tuple[str, ...]) -> str:
    key, value, source, text = cells
    bold = emphasised(f"{value:>{widths[1]}}")
    return f"{key:<{widths[0]}}  {bold}  {source:<{widths[2]}}  {text}"


def _listed(resolution: "Resolution", width: int) -> Iterable[str]:
    for entry in resolution.ledger:
        pointer, value = one_line(dotted(entry.pointer)), one_line(shown(entry.value))
        yield f"{pointer} = {emphasised(value)}"
        text = one_line(f"{source_of(entry)}: {reason(entry)}")
        yield from wrap(text, width, initial_indent="  ", subsequent_indent="  ")


def explained(entry: "LedgerEntry") -> str:
    """Return all details of an entry (--explain): source, rule and inputs."""
    lines = [
        f"{dotted(entry.pointer)} = {shown(entry.value)}",
        f"  source: {source_of(entry)}",
        f"  rule:   {entry.rule}",
    ]
    for name, value in entry.inputs.items():
        if is_block(value):
            lines.append(f"  {name}:")
            lines += [f"    {key}: {shown(child)}" for key, child in value.items()]
        else:
            lines.append(f"  {name}: {shown(value)}")
    return "\n".join(map(one_line, lines))


def reason(entry: "LedgerEntry") -> str:
    """Return the rule with its scalar inputs."""
    inputs = [
        f"{name}={shown(value)}"
        for name, value in entry.inputs.items()
        if value is not None and not isinstance(value, dict)
    ]
    return f"{entry.rule} ({', '.join(inputs)})" if inputs else entry.rule


def shown(value: Any) -> str:
    """Return a value as JSON, integers with thousands separators."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)
