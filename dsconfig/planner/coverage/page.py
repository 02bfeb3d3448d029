"""Reference page ``docs/reference/engine-keys.md``."""

from collections.abc import Iterator

from dsconfig.planner.coverage.cover import SWITCHED, rule_of
from dsconfig.planner.coverage.rules import Case
from dsconfig.planner.plan import Status
from dsconfig.schema import KeyStatus, keys

TITLE = """# How dsengine handles each key

Generated from the table that `dsconfig plan` uses (`make generate`).
Each key that DeepSpeed 0.19.8 reads is *used* (with the mechanism), *inert* (with the reason)
or *refused* (with an alternative); the first line that applies decides. All keys of a block with
an `enabled` switch are inert while it is off.
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([TITLE, *_rows()]) + "\n"


def live_paths() -> list[str]:
    """Return the dotted paths of all keys that DeepSpeed 0.19.8 reads, except blocks."""
    live = [known.path for known in keys() if known.status is KeyStatus.LIVE]
    blocks = {path.rpartition(".")[0] for path in live}
    return [path for path in live if path not in blocks]


def _rows() -> Iterator[str]:
    counts = dict.fromkeys(Status, 0)
    lines: list[str] = []
    for path in live_paths():
        rule = rule_of(path)
        cases = () if rule is None else rule
        best = min((case.status for case in cases), key=list(Status).index, default=Status.REFUSED)
        counts[best] += 1
        switch = " (if its block is enabled)" if path.split(".")[0] in SWITCHED else ""
        lines.append(f"| `{path}` | {'<br>'.join(map(_describe, cases))}{switch} |")
    summary = ", ".join(f"{number} {status.label}" for status, number in counts.items())
    yield f"{len(lines)} keys: {summary} (counted by the best case of each).\n"
    yield "| key | handling |"
    yield "|---|---|"
    yield from lines


def _describe(case: Case) -> str:
    condition = f" {case.when.description}" if case.when else ""
    return f"**{case.status.label}**{condition}: {case.by}"
