"""Write the screenshots in docs/images: real output of dsconfig as SVG, light and dark.

PYTHONPATH=tests python -m screenshots      part of make generate
"""

import io
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

import guide_pages

IMAGES = guide_pages.ROOT / "docs" / "images"


class Screenshot(NamedTuple):
    """A command, the paragraphs of its output to show, and whether the file is the fixed one."""

    command: str
    paragraphs: str | None = None
    corrected: bool = False


SCREENSHOTS = {
    "validate": Screenshot("dsconfig validate ds.json"),
    "estimate": Screenshot(
        "dsconfig estimate ds.json --model llama-3-8b --gpus 4 --device a100-80gb "
        "--seq-len 8192 --micro-batch 1",
        paragraphs="1-3",
        corrected=True,
    ),
}
NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
Color = tuple[int, int, int]


def theme(background: Color, foreground: Color, normal: str, bright: str) -> TerminalTheme:
    """Return a theme from colors in the order of ``NAMES``."""
    return TerminalTheme(background, foreground, colors(normal), colors(bright))


def colors(text: str) -> list[Color]:
    """Return the colors of a list such as ``"24292f cf222e"``."""
    return [rgb(word) for word in text.split()]


def rgb(word: str) -> Color:
    red, green, blue = bytes.fromhex(word)
    return red, green, blue


THEMES = {
    "light": theme(
        rgb("ffffff"),
        rgb("24292f"),
        "24292f cf222e 116329 7d4e00 0969da 8250df 1b7c83 6e7781",
        "57606a a40e26 1a7f37 633c01 218bff a475f9 3192aa 8c959f",
    ),
    "dark": theme(
        rgb("0d1117"),
        rgb("e6edf3"),
        "484f58 ff7b72 3fb950 d29922 58a6ff bc8cff 39c5cf b1bac4",
        "6e7681 ffa198 56d364 e3b341 79c0ff d2a8ff 56d4dd ffffff",
    ),
}
TEMPLATE = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
}}
{styles}
</style>
<defs>
{lines}
</defs>
<rect fill="BACKGROUND" stroke="BORDER" width="100%" height="100%" rx="8"/>
<g class="{unique_id}-matrix" transform="translate({terminal_x}, 20)">
{backgrounds}
{matrix}
</g>
</svg>
"""
"""Rich's template without the window frame and the font from a CDN."""


def main() -> None:
    """Write every screenshot that has changed."""
    for name, screenshot in SCREENSHOTS.items():
        text = colored_output(screenshot)
        for mode, palette in THEMES.items():
            target = IMAGES / f"{name}-{mode}.svg"
            svg = as_svg(text, f"{name}-{mode}", palette)
            if not target.exists() or target.read_text("utf-8") != svg:
                target.write_text(svg, "utf-8")
                print(target.relative_to(guide_pages.ROOT))


def colored_output(screenshot: Screenshot) -> str:
    """Return a command and its output as a terminal shows them, with ANSI codes."""
    config = (IMAGES / "ds.json").read_text("utf-8")
    if screenshot.corrected:
        config = config.replace('overlap_com"', 'overlap_comm"')
    with TemporaryDirectory() as folder:
        (Path(folder) / "ds.json").write_text(config)
        done = subprocess.run(
            [sys.executable, "-m", *screenshot.command.split()],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **{name: value for name, value in os.environ.items() if name != "NO_COLOR"},
                "COLUMNS": str(guide_pages.WIDTH),
                "FORCE_COLOR": "1",
                "PYTHONUNBUFFERED": "1",
            },
            check=False,
        )
    output = guide_pages.selected(done.stdout, screenshot.paragraphs)
    output = output.removesuffix(f"\n\n{guide_pages.CUT}")
    return f"\x1b[1m$ {screenshot.command}\x1b[0m\n{output}"


def as_svg(text: str, identifier: str, palette: TerminalTheme) -> str:
    """Return text with ANSI codes as an SVG."""
    console = Console(
        record=True, width=guide_pages.WIDTH + 2, file=io.StringIO(), force_terminal=True
    )
    console.print(Text.from_ansi(text), soft_wrap=False)
    template = TEMPLATE.replace("BACKGROUND", palette.background_color.hex)
    template = template.replace("BORDER", palette.ansi_colors[7].hex)
    return console.export_svg(title="", theme=palette, code_format=template, unique_id=identifier)


if __name__ == "__main__":
    main()
