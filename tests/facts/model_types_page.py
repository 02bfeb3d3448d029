"""Write docs/reference/model-types.md: every model type of the installed transformers.

    PYTHONPATH=tests python -m facts.model_types_page

``make test-deep`` holds each of them to the live class, thirty of them ``make test-all``.
"""

import os
import tempfile
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from dsconfig.facts import FactError, gather
from facts.causal_types import Counted, causal_types, counted
from facts.test_hf_attributes import live_width, model_types, saved, width_of_file

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "model-types.md"


class Width(StrEnum):
    RIGHT = "as the live class has it"
    NONE = "none: transformers stops too"
    UNKNOWN = "unknown, and reported as such"
    WRONG = "another than the live class"
    UNTRIED = "not tried: no default config that can be saved"


class Sizes(StrEnum):
    COUNTED = "counted tensor by tensor"
    PARTIAL = "unknown: --params says them"
    REFUSED = "refused"


class Tried(NamedTuple):
    model_type: str
    width: Width
    sizes: Sizes | None = None


def tried(model_type: str, kind: Any, folder: Path) -> Tried:
    try:
        default = kind()
        file = saved(kind, default, folder)
    except Exception:  # whatever a class of transformers does without arguments
        return Tried(model_type, Width.UNTRIED)
    ours, live = width_of_file(file), live_width(default)
    width = Width.UNKNOWN if ours == "unknown" else Width.RIGHT if ours == live else Width.WRONG
    if ours is None and live is None:
        width = Width.NONE
    try:
        known = gather(model=folder / "config.json", gpus=1)
    except FactError:
        return Tried(model_type, width, Sizes.REFUSED)
    return Tried(model_type, width, Sizes.COUNTED if known.model else Sizes.PARTIAL)


def sweep() -> Iterator[Tried]:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    for model_type in model_types():
        if model_type in CONFIG_MAPPING:
            with tempfile.TemporaryDirectory() as folder:
                yield tried(model_type, CONFIG_MAPPING[model_type], Path(folder))


def causal_lines(found: dict[str, Counted]) -> list[str]:
    """Yield causal language models with exact, close and flagged counts."""
    exact = [name for name, each in found.items() if each.ours == each.live]
    near = [name for name, each in found.items() if each.is_right and each.ours != each.live]
    flagged = [name for name, each in found.items() if not each.is_right and each.is_flagged]
    wrong = [name for name, each in found.items() if not each.is_right and not each.is_flagged]
    lines = [
        "## Causal language models",
        "",
        f"Parameters of {len(found)} types by their default config beside the class that",
        "transformers builds of it on the meta device; the others need more than that config.",
        "",
        "| parameters | types |",
        "| --- | --- |",
        f"| exactly those of the live model | {len(exact)} |",
        f"| within 3 % | {len(near)} |",
        f"| unknown or further off, and flagged | {len(flagged)} |",
        f"| further off in silence | {len(wrong)} |",
    ]
    for title, names in (("Exact", exact), ("Unknown, and flagged", flagged), ("Wrong", wrong)):
        if names:
            lines += ["", f"{title}: " + ", ".join(f"`{each}`" for each in names)]
    return [*lines, ""]


def page(found: list[Tried], causal: dict[str, Counted]) -> str:
    import transformers

    lines = [
        "# Model types",
        "",
        f"What `--model config.json` knows of the {len(found)} model types of transformers "
        f"{transformers.__version__}, each",
        "tried with its default config, saved and read back. The width is what the Trainer and",
        "accelerate fill bucket sizes from. Written by `python -m facts.model_types_page`;",
        "`make test-deep` holds each type to the live class, thirty of them `make test-all`.",
        "",
        "| width | types |",
        "| --- | --- |",
    ]
    lines += [f"| {each} | {sum(one.width is each for one in found)} |" for each in Width]
    lines += ["", "| parameters | types |", "| --- | --- |"]
    lines += [f"| {each} | {sum(one.sizes is each for one in found)} |" for each in Sizes]
    lines += ["", *causal_lines(causal)[:-1]]
    for title, chosen in (
        ("Width unknown", [one for one in found if one.width is Width.UNKNOWN]),
        ("Parameters counted", [one for one in found if one.sizes is Sizes.COUNTED]),
        ("Not tried", [one for one in found if one.width is Width.UNTRIED]),
        ("Refused", [one for one in found if one.sizes is Sizes.REFUSED]),
        ("Wrong", [one for one in found if one.width is Width.WRONG]),
    ):
        if chosen:
            named = ", ".join(f"`{one.model_type}`" for one in chosen)
            lines += ["", f"## {title}", "", named]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    tried_types = list(sweep())
    causal = {name: each for name in causal_types() if (each := counted(name)) is not None}
    PAGE.write_text(page(tried_types, causal), "utf-8")
    print(PAGE.name)
