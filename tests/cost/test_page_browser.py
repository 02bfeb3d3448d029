"""The report page in a real browser: bars, legend and table are drawn, without a network."""

import re
import subprocess
from pathlib import Path

import pytest

import browser
from dsconfig.cost.estimate import Phase
from dsconfig.cost.plots import html_page
from dsconfig.cost.usual import table
from dsconfig.facts.gathering import gather
from suite.limits import scaled

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(browser.BROWSER is None, reason=browser.REASON),
]

REPORT = table(gather(gpus=8, params="13e9", device="a100-80gb"))


REMEDY = {
    "what": "recompute activations",
    "fits": True,
    "needed_bytes": 5 * 2**30,
    "slowdown": 1.25,
    "steps": [{"where": "TrainingArguments", "text": "gradient_checkpointing=True"}],
}


def opened(report: Path, script: str = "") -> str:
    """Return the page after running ``script`` in it."""
    made = html_page(REPORT, "Does not fit.", [REMEDY])
    report.write_text(made + f"<script>{script}</script>", encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    done = subprocess.run(
        [str(browser.BROWSER), *flags, report.as_uri()],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=True,
    )
    return done.stdout


def test_page_draws_a_bar_and_a_row_per_option(tmp_path: Path) -> None:
    drawn = opened(tmp_path / "report.html")
    assert drawn.count('class="row"') == len(REPORT.options)
    assert drawn.count("<tr>") == len(REPORT.options) + 1
    assert "stage 3, optimizer + parameters to CPU" in drawn


def test_verdict_and_remedies_are_at_the_top(tmp_path: Path) -> None:
    drawn = opened(tmp_path / "report.html")
    assert '<p id="verdict">Does not fit.</p>' in drawn
    brings = "recompute activations (5.0 GiB, 1.25x step time):"
    written = "in TrainingArguments: <code>gradient_checkpointing=True</code>"
    assert f"<li>{brings}<ul><li>{written}</li></ul></li>" in drawn


def test_bar_shows_all_required_memory(tmp_path: Path) -> None:
    drawn = opened(tmp_path / "report.html")
    figures = re.findall(r'class="figure">([\d.]+) GiB', drawn)
    assert figures == [f"{each.device.needed_bytes / 2**30:.1f}" for each in REPORT.options]
    for number, name in enumerate(("allocator overhead", "outside the allocator")):
        assert f'<b class="beside{number}"></b>{name}' in drawn
        assert drawn.count(f'<i class="beside{number}"') == len(REPORT.options)


def test_clicking_a_column_sorts_and_reverses(tmp_path: Path) -> None:
    up = opened(tmp_path / "up.html", "document.querySelectorAll('th')[1].click();")
    down = opened(
        tmp_path / "down.html",
        "for (const _ of [1, 2]) document.querySelectorAll('th')[1].click();",
    )
    peaks = sorted({option.device.peak_bytes for option in REPORT.options})
    assert sorted_peaks(up) == [f"{peak / 2**30:.2f}" for peak in peaks]
    assert sorted_peaks(down) == [f"{peak / 2**30:.2f}" for peak in reversed(peaks)]


def sorted_peaks(drawn: str) -> list[str]:
    """The second column from the top, each figure once."""
    rows = re.findall(r"<tr><td[^>]*>[^<]*</td><td[^>]*>([\d.]+)<", drawn)
    return list(dict.fromkeys(rows))


def test_hovering_shows_formula_and_key(tmp_path: Path) -> None:
    move = "new MouseEvent('mousemove', {clientX: 10, clientY: 10})"
    drawn = opened(
        tmp_path / "report.html", f"document.querySelector('.stack i').dispatchEvent({move});"
    )
    first = REPORT.options[0].device
    widest = max(
        (part for part in first.components if first.peak_phase in part.phases),
        key=lambda part: part.bytes,
    )
    tip = re.search(r'id="tip"[^>]*>([^<]*)<', drawn)
    assert tip is not None
    assert tip[1].startswith(widest.name)
    assert widest.formula in tip[1]
    assert f"key {widest.pointer}" in tip[1]


def test_phase_button_redraws_the_bars(tmp_path: Path) -> None:
    press = "[...document.querySelectorAll('#phases button')].find(b => b.textContent == 'init')"
    drawn = opened(tmp_path / "report.html", f"{press}.click();")
    figures = re.findall(r'class="figure">([\d.]+) GiB', drawn)
    expected = [option.device.phase_bytes[Phase.INIT] / 2**30 for option in REPORT.options]
    assert figures == [f"{value:.1f}" for value in expected]


def test_axis_and_legend_show_what_is_visible(tmp_path: Path) -> None:
    drawn = opened(tmp_path / "report.html")
    (axis,) = re.findall(r'class="axis">(.*?)</div>', drawn)
    ticks = re.findall(r"<span[^>]*>([^<]*)</span>", axis)
    assert len(ticks) > 2 and ticks[0] == "0"
    legend = re.search(r'id="legend">(.*?)</div>', drawn)
    assert legend is not None
    named = set(re.findall(r"</b>([^<]*)</span>", legend[1]))
    at_peak = {
        part.name
        for option in REPORT.options
        for part in option.device.components
        if option.device.peak_phase in part.phases
    }
    everywhere = {part.name for option in REPORT.options for part in option.device.components}
    assert at_peak <= named and not everywhere <= named
