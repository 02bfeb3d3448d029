"""The estimate as one self-contained page: no network, no library."""

import json
from html import escape
from pathlib import Path

from dsconfig.cost.buckets import HISTORY
from dsconfig.cost.estimate import Estimate
from dsconfig.cost.render.chart import COLOURS, title
from dsconfig.cost.render.words import label
from dsconfig.cost.shape import as_data

TEMPLATE = Path(__file__).with_name("page.html")


def page(estimate: Estimate) -> str:
    """HTML with stacked bars by choice and phase, formulas on hover, and a sortable table."""
    data = as_data(estimate)
    for shown, option in zip(data["options"], estimate.options, strict=True):
        shown["label"] = label(option)
    # "</" would end the script element early, whatever it stands in.
    payload = json.dumps({**data, "colours": COLOURS}).replace("</", "<\\/")
    return (
        TEMPLATE.read_text(encoding="utf-8")
        .replace("@@TITLE@@", escape(title(estimate)))
        .replace("@@HISTORY@@", escape(HISTORY))
        .replace("@@DATA@@", payload)
    )
