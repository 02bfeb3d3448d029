"""Memory bars on a terminal: one stacked bar per option, a common axis and a legend."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dsconfig.commands.text_table import terminal_width, uses_color
from dsconfig.cost.estimate import Option
from dsconfig.cost.plots import at_peak, at_peak_names, component_colors
from dsconfig.cost.rendering import bar, label
from dsconfig.report.sizes import GIB, gib

BAR_WIDTH, MIN_BAR_WIDTH = 40, 10
SIZE_WIDTH = 16
"""Columns of the gap before a bar and of the size after it."""
MIN_TICK_WIDTH = 8
"""Columns from one label of the axis to the next."""
OVERHEAD = "overhead"
OVERHEAD_COLOR = "#999999"
FULL, SHADED = "█", "░"


class Segment(NamedTuple):
    """Part of a bar: a component and its width in columns."""

    name: str
    width: int


def memory_bars(options: Sequence[Option]) -> str:
    """Return bars of the memory required per GPU, stacked by component if color is enabled."""
    labels = [label(option) for option in options]
    names = max(map(len, labels))
    width = max(MIN_BAR_WIDTH, min(BAR_WIDTH, terminal_width() - names - SIZE_WIDTH))
    largest = max(option.device.needed_bytes for option in options)
    colors = {**component_colors(options), OVERHEAD: OVERHEAD_COLOR} if uses_color() else {}
    lines = ["Required per GPU"]
    visible: dict[str, None] = {}
    for text, option in zip(labels, options, strict=True):
        size = gib(option.device.needed_bytes)
        if colors:
            segments = list(_segments(option, largest, width, at_peak_names(list(options))))
            visible |= dict.fromkeys(segment.name for segment in segments)
            drawn = "".join(_colored(segment, colors[segment.name]) for segment in segments)
        else:
            drawn = bar(option.device.needed_bytes, largest, width)
        lines.append(f"{text:{names}}  {drawn} {size}")
    lines.append(f"{'':{names}}  {_axis(largest / GIB, width)}")
    if visible:
        lines += _legend(list(visible), colors)
    return "\n".join(lines)


def _segments(option: Option, largest: int, width: int, order: Sequence[str]) -> Iterator[Segment]:
    """Yield the components of a bar that are at least one column wide, ``order`` first to last."""
    sizes = at_peak(option)
    parts = [(name, sizes[name]) for name in order if name in sizes]
    parts.append((OVERHEAD, sum(option.device.beside_peak.values())))
    end = drawn = 0
    for name, size in parts:
        end += size
        columns = round(end / largest * width) - drawn
        if columns > 0:
            drawn += columns
            yield Segment(name, columns)


def _colored(segment: Segment, color: str) -> str:
    from rich.style import Style

    character = SHADED if segment.name == OVERHEAD else FULL
    return Style(color=color).render(character * segment.width)


def _axis(largest: float, width: int) -> str:
    """Return tick labels in GiB at round values for bars up to ``largest`` GiB."""
    if largest <= 0:
        return "0 GiB"
    step = _round_step(largest * MIN_TICK_WIDTH / width)
    line = ""
    for index in range(math.floor(largest / step) + 1):
        column = round(index * step / largest * width)
        text = f"{index * step:g}"
        if column + len(text) <= width + len(text) // 2:
            line = f"{line:<{column}}{text}"
    return f"{line} GiB"


def _round_step(minimum: float) -> float:
    """Return the smallest 1, 2 or 5 times a power of ten that is at least ``minimum``."""
    power = 10.0 ** math.floor(math.log10(minimum))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= minimum)


def _legend(names: Sequence[str], colors: dict[str, str]) -> Iterator[str]:
    """Yield lines of color samples and component names, wrapped to the terminal."""
    line, columns = "", 0
    for name in names:
        needed = len(name) + 4
        if line and columns + needed > terminal_width():
            yield line.rstrip()
            line, columns = "", 0
        line += f"{_colored(Segment(name, 1), colors[name])} {name}  "
        columns += needed
    yield line.rstrip()
