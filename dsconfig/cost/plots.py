"""Estimates as plots: PNG, SVG and PDF through matplotlib, and one self-contained HTML page."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dsconfig.cost.buckets import HISTORY
from dsconfig.cost.colors import colors_of
from dsconfig.cost.estimate import MARGIN, MOVED, OUTSIDE, Estimate, Option
from dsconfig.cost.rendering import as_data, label
from dsconfig.report import writers
from dsconfig.report.sizes import GIB

FORMATS = (".png", ".svg", ".pdf")
BESIDE_PEAK = {MARGIN: "////", OUTSIDE: "....", MOVED: "xxxx"}
"""Hatches of memory that PyTorch does not count as allocated, and that must fit as well."""


def write_plot(estimate: Estimate, path: Path) -> None:
    """Draw a stacked bar of the required memory at the peak (GiB) for each option.

    Raises ValueError for a suffix other than png, svg or pdf, or if matplotlib is missing.
    """
    if path.suffix not in FORMATS:
        raise ValueError(f"--plot {path}: the file name must end in .png, .svg or .pdf")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("--plot needs matplotlib: pip install 'dsconfig-zero[plot]'") from None
    options = list(reversed(estimate.options))
    figure: Any = Figure(figsize=(11, max(3.0, 1.4 + 0.45 * len(options))))
    axes = figure.subplots()
    left = [0.0] * len(options)
    colors = component_colors(options)
    for name in at_peak_names(options):
        widths = [at_peak(option).get(name, 0) / GIB for option in options]
        left = _stack(axes, left, widths, label=name, color=colors[name])
    for name, hatch in BESIDE_PEAK.items():
        widths = [option.device.beside_peak.get(name, 0) / GIB for option in options]
        if any(widths):
            style = {"color": "#e8e8e8", "edgecolor": "#777777", "hatch": hatch, "linewidth": 0}
            left = _stack(axes, left, widths, label=name, **style)
    axes.set_yticks(range(len(options)), [label(option) for option in options])
    axes.set_ylim(-0.75, len(options) - 0.25)
    axes.set_xlabel("Required memory per GPU at the peak (GiB)")
    axes.set_title(writers.plot_label(title(estimate)))
    capacity = _mark_capacity(axes, options)
    axes.set_xlim(0, 1.03 * max(*left, capacity) or None)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    # bbox_inches="tight" would draw the figure twice.
    figure.savefig(path, bbox_inches=figure.get_tightbbox().padded(0.1))


def _stack(axes: Any, left: list[float], widths: list[float], **style: Any) -> list[float]:
    """Draw a bar of each positive width at the end of its row, and return the new ends."""
    rows = [row for row, width in enumerate(widths) if width]
    axes.barh(rows, [widths[row] for row in rows], left=[left[row] for row in rows], **style)
    return [start + width for start, width in zip(left, widths, strict=True)]


def component_colors(options: Iterable[Option]) -> dict[str, str]:
    """Return the color of each GPU memory component, the same in every plot of these options."""
    return colors_of(part.name for option in options for part in option.device.components)


def title(estimate: Estimate) -> str:
    """Return the model and the number of GPUs."""
    gpus = estimate.inputs.get("gpus")
    return f"{estimate.inputs.get('model') or 'model'} on {gpus} GPU{'s' if gpus != 1 else ''}"


def _mark_capacity(axes: Any, options: list[Option]) -> float:
    """Draw a line at the memory of the GPU and return it in GiB; 0 if the GPU is not known."""
    devices = {fit.memory_bytes: fit.device for option in options for fit in option.fits}
    if len(devices) != 1:
        return 0.0
    memory, name = next(iter(devices.items()))
    axes.axvline(
        memory / GIB, color="black", linestyle="--", linewidth=1, label=writers.plot_label(name)
    )
    return memory / GIB


def at_peak(option: Option) -> dict[str, int]:
    """Return the bytes of each component in the phase of the peak."""
    phase = option.device.peak_phase
    sizes: dict[str, int] = {}
    for part in option.device.components:
        if phase in part.phases:
            sizes[part.name] = sizes.get(part.name, 0) + part.bytes
    return sizes


def at_peak_names(options: list[Option]) -> list[str]:
    """Return the names of the components present at a peak, largest first."""
    largest: dict[str, int] = {}
    for option in options:
        for name, amount in at_peak(option).items():
            largest[name] = max(amount, largest.get(name, 0))
    return sorted(largest, key=lambda name: -largest[name])


TEMPLATE = Path(__file__).with_name("page.html")


def html_page(
    estimate: Estimate, verdict: str = "", remedies: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Return a page with stacked bars by option and phase, formulas on hover, and a sortable table.

    ``verdict`` and ``remedies`` (as in the JSON output) come first.
    """
    data = as_data(estimate)
    for shown, option in zip(data["options"], estimate.options, strict=True):
        shown["label"] = label(option)
        shown["beside"] = option.device.beside_peak
    data |= {"verdict": verdict, "remedies": list(remedies)}
    data["colors"] = component_colors(estimate.options)
    parts = {
        "TITLE": writers.html(title(estimate)),
        "HISTORY": writers.html(HISTORY),
        "DATA": writers.json_in_html(data),
    }
    template = TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"@@(\w+)@@", lambda found: parts[found[1]], template)
