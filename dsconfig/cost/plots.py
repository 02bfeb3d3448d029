"""The estimate as a picture: one stacked bar per choice (matplotlib, loaded only here)."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from dsconfig.cost.buckets import HISTORY
from dsconfig.cost.estimate import MARGIN, MOVED, OUTSIDE, Estimate, Option
from dsconfig.cost.rendering import as_data, label
from dsconfig.report.sizes import GIB

FORMATS = (".png", ".svg", ".pdf")
COLOURS = (
    "#4c72b0",
    "#dd8452",
    "#55a868",
    "#c44e52",
    "#8172b3",
    "#937860",
    "#da8bc3",
    "#8c8c8c",
    "#ccb974",
    "#64b5cd",
    "#1f3864",
    "#f2b48c",
    "#23633a",
    "#7f1d1d",
    "#c3b5e3",
    "#4a3423",
    "#a8327d",
    "#c9c9c9",
    "#8a7a1f",
    "#0e7490",
)
"""More than any estimate has components, so that no two of them look alike."""


BESIDE_PEAK = {MARGIN: "////", OUTSIDE: "....", MOVED: "xxxx"}
"""What is not allocated and has to fit too, hatched."""


def write_plot(estimate: Estimate, path: Path) -> None:
    """Draw what must fit at each choice's peak, in GiB: components, then margin and context.

    Raises ValueError for a suffix other than png, svg or pdf, or without matplotlib.
    """
    if path.suffix not in FORMATS:
        raise ValueError(f"--plot {path}: the name has to end in .png, .svg or .pdf")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("--plot needs matplotlib: pip install 'dsconfig-zero[plot]'") from None
    options = list(reversed(estimate.options))
    figure: Any = Figure(figsize=(11, max(3.0, 1.4 + 0.45 * len(options))), layout="constrained")
    axes = figure.subplots()
    names = at_peak_names(options)
    left = [0.0] * len(options)
    for index, name in enumerate(names):
        widths = [at_peak(option).get(name, 0) / GIB for option in options]
        colour = COLOURS[index % len(COLOURS)]
        axes.barh(range(len(options)), widths, left=left, label=name, color=colour)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for name, hatch in BESIDE_PEAK.items():
        widths = [option.device.beside_peak.get(name, 0) / GIB for option in options]
        if any(widths):
            look = {"color": "#e8e8e8", "edgecolor": "#777777", "hatch": hatch, "linewidth": 0}
            axes.barh(range(len(options)), widths, left=left, label=name, **look)
            left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(options)), [label(option) for option in options])
    axes.set_ylim(-0.75, len(options) - 0.25)
    axes.set_xlabel("GiB per GPU that must fit, at the peak")
    axes.set_title(title(estimate))
    card = _mark_capacity(axes, options)
    axes.set_xlim(0, 1.03 * max(*left, card) or None)
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    figure.savefig(path)


def title(estimate: Estimate) -> str:
    """What was estimated, in a few words."""
    gpus = estimate.inputs.get("gpus")
    return f"{estimate.inputs.get('model') or 'model'} on {gpus} GPU{'s' if gpus != 1 else ''}"


def _mark_capacity(axes: Any, options: list[Option]) -> float:
    """A line where the card ends, and where that is in GiB; 0 without a card."""
    cards = {fit.memory_bytes: fit.device for option in options for fit in option.fits}
    if len(cards) != 1:
        return 0.0
    memory, name = next(iter(cards.items()))
    axes.axvline(memory / GIB, color="black", linestyle="--", linewidth=1, label=name)
    return memory / GIB


def at_peak(option: Option) -> dict[str, int]:
    """Bytes by component name at the highest moment."""
    phase = option.device.peak_phase
    held: dict[str, int] = {}
    for part in option.device.components:
        if phase in part.phases:
            held[part.name] = held.get(part.name, 0) + part.bytes
    return held


def at_peak_names(options: list[Option]) -> list[str]:
    """Component names over all choices, the largest first."""
    largest: dict[str, int] = {}
    for option in options:
        for name, amount in at_peak(option).items():
            largest[name] = max(amount, largest.get(name, 0))
    return sorted(largest, key=lambda name: -largest[name])


TEMPLATE = Path(__file__).with_name("page.html")


def html_page(
    estimate: Estimate, verdict: str = "", remedies: Sequence[Mapping[str, Any]] = ()
) -> str:
    """HTML with stacked bars by choice and phase, formulas on hover, and a sortable table.

    ``verdict`` and ``remedies`` (as in JSON) stand at its head.
    """
    data = as_data(estimate)
    for shown, option in zip(data["options"], estimate.options, strict=True):
        shown["label"] = label(option)
        shown["beside"] = option.device.beside_peak
    data |= {"verdict": verdict, "remedies": list(remedies)}
    # "</script" ends the element, "<!--" changes how it is read, whatever text they stand in.
    payload = json.dumps({**data, "colours": COLOURS}).replace("<", "\\u003c")
    return (
        TEMPLATE.read_text(encoding="utf-8")
        .replace("@@TITLE@@", escape(title(estimate)))
        .replace("@@HISTORY@@", escape(HISTORY))
        .replace("@@DATA@@", payload)
    )
