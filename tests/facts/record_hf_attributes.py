"""Write dsconfig/facts/hf_attributes.json from the installed transformers.

PYTHONPATH=tests python -m facts.record_hf_attributes
"""

import inspect
import json
import os
import warnings
from typing import Any

from dsconfig.facts.hf_attributes import FILE, TEXT, WIDTHS


def recorded() -> dict[str, dict[str, Any]]:
    """Return how each class stores its widths, and its parallel plans, by ``model_type``."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.simplefilter("ignore")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    found: dict[str, dict[str, Any]] = {}
    for model_type in CONFIG_MAPPING:
        try:
            kind = CONFIG_MAPPING[model_type]
            default = kind()
        except Exception:  # some need more than defaults, or a package that is not here
            continue
        found[kind.model_type or model_type] = entry = _entry(kind, default)
        found[model_type] = entry
    return dict(sorted(found.items()))


def _entry(kind: Any, default: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    kept_as = {name: kind.attribute_map[name] for name in WIDTHS if name in kind.attribute_map}
    if kept_as:
        entry["kept_as"] = kept_as
    source = inspect.getsource(kind)
    computes = [
        name
        for name in WIDTHS
        if isinstance(getattr(kind, name, None), property) or f"self.{name} =" in source
    ]
    if computes:
        entry["computes_width"] = True
    defaults = {
        name: getattr(default, name)
        for name in WIDTHS
        if name not in computes and hasattr(default, name)
    }
    if defaults:
        entry["defaults"] = defaults
    if getattr(default, "tie_word_embeddings", False):
        entry["ties"] = True
    plan = getattr(kind, "base_model_tp_plan", None)
    if plan:
        entry["tensor_plan"] = dict(sorted(plan.items()))
    if "grouped_gemm" in (getattr(kind, "base_model_ep_plan", None) or {}).values():
        entry["divides_experts"] = True
    text = getattr(default, TEXT, None)
    if text is not None and getattr(text, "model_type", ""):
        entry[TEXT] = text.model_type
    return entry


def to_text(table: dict[str, dict[str, Any]]) -> str:
    """Return the file content: one type per line."""
    lines = (f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in table.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(to_text(recorded()), encoding="utf-8")
