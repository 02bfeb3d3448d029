"""Bars of memory on a terminal."""

import re

import pytest

from dsconfig.commands import bars, text_table
from dsconfig.commands.bars import memory_bars
from dsconfig.cost.plots import component_colors
from dsconfig.cost.usual import table
from dsconfig.facts.gathering import gather

OPTIONS = table(gather(gpus=8, params="13e9", device="a100-80gb")).options
ESCAPE = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture
def color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "uses_color", lambda: True)


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "terminal_width", lambda: 80)


def test_plain_bars_have_an_axis_and_no_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "uses_color", lambda: False)
    lines = memory_bars(OPTIONS).splitlines()
    assert len(lines) == len(OPTIONS) + 2
    assert not ESCAPE.search("\n".join(lines))
    assert re.fullmatch(r" +0 +\d+.* GiB", lines[-1])


@pytest.mark.usefixtures("color")
def test_bars_use_the_colors_of_the_plots() -> None:
    drawn = memory_bars(OPTIONS)
    plain = ESCAPE.sub("", drawn)
    legend = {name: color for name, color in component_colors(OPTIONS).items() if name in plain}
    assert legend
    for color in legend.values():
        red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
        assert f"38;2;{red};{green};{blue}m" in drawn


@pytest.mark.usefixtures("color")
def test_legend_lists_only_visible_components_and_fits() -> None:
    lines = ESCAPE.sub("", memory_bars(OPTIONS)).splitlines()
    legend = " ".join(lines[len(OPTIONS) + 2 :])
    names = {part.name for option in OPTIONS for part in option.device.components}
    assert "optimizer state" in legend
    assert not all(name in legend for name in names)
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.usefixtures("color")
def test_colored_and_plain_bars_are_equally_long(monkeypatch: pytest.MonkeyPatch) -> None:
    colored = ESCAPE.sub("", memory_bars(OPTIONS)).splitlines()[1 : len(OPTIONS) + 1]
    monkeypatch.setattr(bars, "uses_color", lambda: False)
    plain = memory_bars(OPTIONS).splitlines()[1 : len(OPTIONS) + 1]
    for one, other in zip(colored, plain, strict=True):
        assert abs(len(one) - len(other)) <= 1


def test_color_is_off_without_a_terminal() -> None:
    assert not text_table.uses_color()
