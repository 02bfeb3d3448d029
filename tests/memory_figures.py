"""Write the figures of docs/internals/memory.md: stacked bars of estimates, as SVG.

PYTHONPATH=tests python -m memory_figures      part of make generate
"""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from dsconfig.cost import plots, rendering, usual
from dsconfig.cost.estimate import Estimate, Option
from dsconfig.facts.gathering import gather
from dsconfig.report.sizes import GIB, gib

IMAGES = Path(__file__).parents[1] / "docs" / "images"
OTHER = "other"
LABEL_WIDTH, BAR_WIDTH, FIGURE_WIDTH = 330, 450, 70
ROW, TOP, LEGEND_ROW = 34, 44, 22
SMALLEST = 0.012
"""Share of the longest bar below which a component is added to ``other``."""
STYLE = """\
text { font: 14px system-ui, sans-serif; fill: #24292f; }
.paper { fill: #ffffff; stroke: #d0d7de; }
.title { font-weight: 600; }
.axis { stroke: #24292f; stroke-dasharray: 5 4; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .paper { fill: #0d1117; stroke: #30363d; }
  .axis { stroke: #e6edf3; }
}"""


class Row(NamedTuple):
    """One bar: bytes by component, the largest first."""

    label: str
    parts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def main() -> None:
    """Write every figure that has changed."""
    for name, svg in figures().items():
        target = IMAGES / name
        if not target.exists() or target.read_text("utf-8") != svg:
            target.write_text(svg, "utf-8")
            print(f"docs/images/{name}")


def figures() -> dict[str, str]:
    """Return the figures by file name."""
    facts = gather(
        model="llama-3-8b",
        gpus=8,
        device="a100-80gb",
        seq_len=4096,
        micro_batch=1,
        precision="bf16",
    )
    estimate = usual.table(facts, runtime="deepspeed")
    sharded = next(each for each in estimate.options if rendering.label(each) == "stage 3")
    model = "Llama-3-8B on 8 x A100-80GB, 4,096 tokens, DeepSpeed"
    return {
        "memory-stages.svg": drawn(
            f"{model}: required per GPU at the peak (GiB)",
            [Row(rendering.label(each), required(each)) for each in estimate.options],
            estimate,
        ),
        "memory-step.svg": drawn(
            f"{model}, stage 3: allocated in each phase (GiB)",
            [
                Row(str(phase), allocated(sharded, str(phase)))
                for phase in sharded.device.phase_bytes
            ],
            estimate,
        ),
    }


def required(option: Option) -> dict[str, int]:
    """Return the components at the peak and the memory that PyTorch does not count."""
    return {**plots.at_peak(option), **option.device.beside_peak}


def allocated(option: Option, phase: str) -> dict[str, int]:
    """Return the components of a phase."""
    parts = [part for part in option.device.components if phase in map(str, part.phases)]
    return {part.name: part.bytes for part in sorted(parts, key=lambda part: -part.bytes)}


def drawn(title: str, rows: Sequence[Row], estimate: Estimate) -> str:
    """Return stacked bars with a legend, and the memory of the GPU if a bar reaches it."""
    longest = max(row.total for row in rows)
    rows = [grouped(row, longest) for row in rows]
    colors = plots.component_colors(estimate.options)
    names = list(dict.fromkeys(name for row in rows for name in row.parts if name != OTHER))
    names.append(OTHER)
    columns = 3
    legend_top = TOP + ROW * len(rows) + 24
    height = legend_top + LEGEND_ROW * -(-len(names) // columns)
    width = LABEL_WIDTH + BAR_WIDTH + FIGURE_WIDTH + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{STYLE}\n</style>",
        '<rect class="paper" width="100%" height="100%" rx="8"/>',
        f'<text class="title" x="14" y="26">{escape(title)}</text>',
        *(line for at, row in enumerate(rows) for line in bar(row, at, longest, colors)),
        *capacity(estimate, longest, len(rows)),
    ]
    for number, name in enumerate(names):
        x = 14 + (width - 14) // columns * (number % columns)
        y = legend_top + LEGEND_ROW * (number // columns)
        lines.append(
            f'<rect x="{x}" y="{y - 11}" width="12" height="12" fill="{color(name, colors)}"/>'
        )
        lines.append(f'<text x="{x + 18}" y="{y}">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def grouped(row: Row, longest: int) -> Row:
    """Return a row whose smallest components are one."""
    small = {name for name, size in row.parts.items() if size < SMALLEST * longest}
    parts = {name: size for name, size in row.parts.items() if name not in small}
    rest = sum(row.parts[name] for name in small)
    return Row(row.label, {**parts, OTHER: rest} if rest else parts)


def bar(row: Row, number: int, longest: int, colors: dict[str, str]) -> Iterable[str]:
    """Yield the elements of one row."""
    y = TOP + ROW * number
    yield f'<text x="14" y="{y + 18}">{escape(row.label)}</text>'
    x = float(LABEL_WIDTH)
    for name, size in row.parts.items():
        width = BAR_WIDTH * size / longest
        tip = f"<title>{escape(name)}: {gib(size, 1)}</title>"
        box = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="25"'
        yield f'<rect {box} fill="{color(name, colors)}">{tip}</rect>'
        x += width
    yield f'<text x="{x + 8:.1f}" y="{y + 18}">{row.total / GIB:.1f}</text>'


def color(name: str, colors: dict[str, str]) -> str:
    """Return the color of a component; memory beside the peak is gray."""
    return colors.get(name, "#8c959f" if name == OTHER else "#b6bcc4")


def capacity(estimate: Estimate, longest: int, rows: int) -> Iterable[str]:
    """Yield a line at the memory of the GPU."""
    device, memory = next((fit.device, fit.memory_bytes) for fit in estimate.options[0].fits)
    if memory > longest:
        return
    x = LABEL_WIDTH + BAR_WIDTH * memory / longest
    bottom = TOP + ROW * rows - 5
    tip = f"<title>{escape(device)}: {gib(memory, 1)}</title>"
    yield f'<line class="axis" x1="{x:.1f}" y1="{TOP - 5}" x2="{x:.1f}" y2="{bottom}">{tip}</line>'


if __name__ == "__main__":
    main()
