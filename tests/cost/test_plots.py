"""Plots give each component one color and end where the required memory ends."""

import json
from pathlib import Path
from typing import Any

import pytest

from dsconfig.cost.plots import component_colors, html_page, title, write_plot
from dsconfig.cost.usual import table
from dsconfig.facts.gathering import gather


@pytest.mark.parametrize("runtime", ["dsengine", "deepspeed"])
def test_every_component_has_its_own_color(runtime: str) -> None:
    facts = gather(gpus=8, model="llama-2-13b", seq_len=4096)
    estimate = table(facts, runtime=runtime)
    colors = component_colors(estimate.options)
    names = {part.name for option in estimate.options for part in option.device.components}
    assert colors.keys() == names
    assert len(set(colors.values())) == len(names)
    assert f'"colors": {json.dumps(colors)}' in html_page(estimate)


def test_plot_is_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    draw, drawn = figures.Figure.draw, list[Any]()
    monkeypatch.setattr(
        figures.Figure, "draw", lambda self, *given: (drawn.append(self), draw(self, *given))
    )
    write_plot(table(gather(gpus=8, params="7e9")), tmp_path / "chart.png")
    assert len(drawn) == 1 and (tmp_path / "chart.png").stat().st_size


@pytest.mark.parametrize("device", ["a100-80gb", "cpu"])
def test_bars_end_at_the_required_memory(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    drawn: list[Any] = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    found = table(gather(gpus=8, params="7e9", device=device, device_memory="80GiB"))
    write_plot(found, tmp_path / "chart.png")
    (axes,) = drawn[0].axes
    ends = dict[float, float]()
    for bar in axes.patches:
        row = round(bar.get_y() + bar.get_height() / 2)
        ends[row] = max(ends.get(row, 0.0), bar.get_x() + bar.get_width())
    wanted = [option.device.needed_bytes / 2**30 for option in reversed(found.options)]
    assert [ends[row] for row in range(len(wanted))] == pytest.approx(wanted)
    assert axes.get_xlim()[1] >= max(wanted)


def test_title_names_model_and_gpus() -> None:
    assert title(table(gather(gpus=1, params="7e9"))) == "7e9 parameters on 1 GPU"
    assert title(table(gather(gpus=8, params="7e9"))) == "7e9 parameters on 8 GPUs"
