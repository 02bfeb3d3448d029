"""The report page in a real browser: bars, legend and table are drawn, without a network."""

import shutil
import subprocess
from pathlib import Path

import pytest

from dsconfig.facts.gathering import gather
from dsconfig.memory.render.page import page
from dsconfig.memory.table import table

BROWSER = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome", "headless_shell")
        if (path := shutil.which(name))
    ),
    None,
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed"),
]


def test_the_page_draws_a_bar_and_a_row_for_every_choice(tmp_path: Path) -> None:
    found = table(gather(world_size=8, params="13e9", device="a100-80gb"))
    report = tmp_path / "report.html"
    report.write_text(page(found), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    done = subprocess.run(
        [str(BROWSER), *flags, report.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.count('class="row"') == len(found.options)
    assert done.stdout.count("<tr>") == len(found.options) + 1
    assert "stage 3, optimizer + parameters to CPU" in done.stdout
