"""docs/internals/mutants.md: what the suite noticed of the sample, and why the rest may live."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mutation.sites import Mutant

ARGUED = Path(__file__).parent / "argued.json"
"""By key of a mutant that survives: why it may, or what is missing."""
WIDTH = 110


def page(sample: Iterable[Mutant], verdicts: Mapping[str, Mapping[str, Any]], commit: str) -> str:
    """The sample of a commit by room, then each survivor, then who killed the others."""
    argued: dict[str, str] = json.loads(ARGUED.read_text("utf-8"))
    rooms: dict[str, list[str]] = defaultdict(list)
    alive: list[str] = []
    dead: list[str] = []
    for mutant in sorted(sample, key=lambda each: (each.path, each.lines.start)):
        verdict = verdicts.get(mutant.key, {"outcome": "not tried", "by": ""})
        rooms["/".join(mutant.path.split("/")[:2])].append(verdict["outcome"])
        row = f"| `{mutant.where}` | {mutant.kind} | {_code(mutant.old)} | {_code(mutant.new)} |"
        if verdict["outcome"] == "killed":
            dead.append(f"{row} {_code(verdict['by'])} |")
        else:
            alive.append(f"{row} {argued.get(mutant.key, verdict['outcome'])} |")
    outcomes = [outcome for found in rooms.values() for outcome in found]
    killed = outcomes.count("killed")
    head = [
        "# Mutants",
        "",
        "Small mistakes, one at a time, in the core rooms and the engine's loop, each put to the "
        "tests that run its line (`make mutants`, a fixed sample). Style checks and pages that are "
        "written from the sources do not count as witnesses: they see that something changed, not "
        "that it is wrong.",
        "",
        f"**{killed} of {len(outcomes)} are killed ({killed / len(outcomes):.1%}).** Lines are "
        f"those of commit {commit}.",
        "",
        "| Room | Mutants | Killed |",
        "|---|---:|---:|",
        *(
            f"| `{room}` | {len(found)} | {found.count('killed')} |"
            for room, found in rooms.items()
        ),
    ]
    columns = "| Line | Kind | Was | Became |"
    rule = "|---|---|---|---|---|"
    survivors = ["", "## Survivors", "", f"{columns} Why it lives |", rule, *alive]
    others = ["", "## Killed", "", f"{columns} By |", rule, *dead, ""]
    return "\n".join([*head, *survivors, *others])


def _code(text: str) -> str:
    short = text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
    return f"`{short.replace('|', chr(92) + '|')}`"
