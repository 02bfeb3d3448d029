"""Write docs/internals/mutants.md: killed mutants, and why the survivors are accepted."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mutation.sites import Mutant

ACCEPTED = Path(__file__).parent / "accepted.json"
"""Reasons for surviving mutants, by key."""
WIDTH = 110


def page(sample: Iterable[Mutant], verdicts: Mapping[str, Mapping[str, Any]], commit: str) -> str:
    """Return the page: the sample by package, then survivors, then killed mutants."""
    reasons: dict[str, str] = json.loads(ACCEPTED.read_text("utf-8"))
    packages: dict[str, list[str]] = defaultdict(list)
    alive: list[str] = []
    dead: list[str] = []
    for mutant in sorted(sample, key=lambda mutant: (mutant.path, mutant.lines.start)):
        verdict = verdicts.get(mutant.key, {"outcome": "not tried", "by": ""})
        packages["/".join(mutant.path.split("/")[:2])].append(verdict["outcome"])
        row = f"| `{mutant.where}` | {mutant.kind} | {_code(mutant.old)} | {_code(mutant.new)} |"
        if verdict["outcome"] == "killed":
            dead.append(f"{row} {_code(verdict['by'])} |")
        else:
            alive.append(f"{row} {reasons.get(mutant.key, verdict['outcome'])} |")
    outcomes = [outcome for outcomes in packages.values() for outcome in outcomes]
    killed = outcomes.count("killed")
    head = [
        "# Mutants",
        "",
        "A fixed sample of mutants in the core packages and the engine's loop, each run against "
        "the tests that cover its line (`make mutants`). Style checks and generated pages do not "
        "count: they detect that something changed, not that it is wrong.",
        "",
        f"**{killed} of {len(outcomes)} are killed ({killed / len(outcomes):.1%}).** "
        f"Files, lines and tests are those of commit {commit}.",
        "",
        "| Package | Mutants | Killed |",
        "|---|---:|---:|",
        *(
            f"| `{package}` | {len(results)} | {results.count('killed')} |"
            for package, results in packages.items()
        ),
    ]
    columns = "| Line | Kind | Was | Became |"
    rule = "|---|---|---|---|---|"
    survivors = ["", "## Survivors", "", f"{columns} Reason |", rule, *alive]
    others = ["", "## Killed", "", f"{columns} By |", rule, *dead, ""]
    return "\n".join([*head, *survivors, *others])


def _code(text: str) -> str:
    short = text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
    return f"`{short.replace('|', chr(92) + '|')}`"
