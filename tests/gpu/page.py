"""docs/internals/gpu.md: what was measured on a card, or that nothing was yet."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpu.cases import Row

NOT_YET = "**Nothing has been measured on a card yet.**"
PARTS = {
    "training": (
        "Training",
        "The engine on a card against the engine on the host: the largest gap of the losses, "
        "relative. Then files of its tests with their ranks on the card: how many tests passed, "
        "were skipped, and which went wrong.",
    ),
    "dry_run": (
        "The dry run and the card",
        "Peak bytes by phase: what the allocator of torch has counted on the card, then what "
        "`dsengine.simulate` says. The dry run counts what is offloaded too, the card does not.",
    ),
    "copies": (
        "Pinned memory and copies",
        "One step of an optimizer on the host: which of its tensors are pinned, seconds of the "
        "step, of the updates and of the copies back to the card, and the share of the copies "
        "that is hidden behind updates.",
    ),
    "speed": (
        "Speed",
        "Tokens per second over all ranks, the peak bytes of one, and the share of the card's "
        "peak in 16 bits that the model's own operations are (MFU).",
    ),
}


def page(records: Mapping[str, Mapping[str, Any]]) -> str:
    """The whole page from records by part."""
    lines = [
        "# On a card",
        "",
        "`make gpu` measures on a machine with one or more NVIDIA GPUs what only a card can show, "
        "in at most 40 minutes, and writes this page. A part that was measured for this commit and "
        "card is not measured again. Every part also runs on the host, in a tiny setting "
        "(`tests/gpu/test_gpu.py`).",
        "",
    ]
    if not any(name in records for name in PARTS):
        lines += [f"{NOT_YET} When it is, these parts stand here:", ""]
        lines += [f"- **{title}.** {words}" for title, words in PARTS.values()]
    for name, (title, words) in PARTS.items():
        if name in records:
            lines += _part(title, words, records[name])
    return "\n".join(lines).rstrip() + "\n"


def _part(title: str, words: str, record: Mapping[str, Any]) -> list[str]:
    cards = f"{record['cards']} x {record['card']}"
    measured = f"Measured on {cards}, {record['date']}, commit `{record['commit']}`"
    return [
        f"## {title}",
        "",
        words,
        "",
        f"{measured}, in {record['seconds']} s.",
        *_tables(record["rows"]),
        "",
    ]


def _tables(rows: Sequence[Row]) -> list[str]:
    """A table for each kind of row; those that failed come last."""
    kinds: dict[tuple[str, ...], list[Row]] = {}
    for row in sorted(rows, key=lambda row: "failed" in row):
        kinds.setdefault(tuple(row), []).append(row)
    lines = []
    for columns, alike in kinds.items():
        lines += ["", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        lines += [f"| {' | '.join(_cell(row[each]) for each in columns)} |" for row in alike]
    return lines


def _cell(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, list):
        return ", ".join(_cell(each) for each in value) or "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value).replace("|", "\\|")
