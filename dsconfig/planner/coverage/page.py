"""The table of ``docs/reference/engine-keys.md``."""

from collections.abc import Iterator

from dsconfig.planner.coverage.cover import SWITCHED, rule_of
from dsconfig.planner.coverage.rules import Case
from dsconfig.planner.plan import Status
from dsconfig.schema import KeyStatus, keys

TITLE = """# What dsengine does with every key

Generated from the table that `dsconfig plan` uses: `make generate`.
Every key that is live in DeepSpeed 0.19.8 is *honoured* by a mechanism, *inert* for a reason, or
*refused* with what to do instead; the first line that applies decides. A block with a switch of its
own is inert as long as it is off.
"""


def page() -> str:
    """The whole page as Markdown."""
    return "\n".join([TITLE, *_rows()]) + "\n"


def live_paths() -> list[str]:
    """Dotted paths of all keys DeepSpeed 0.19.8 reads, blocks left out."""
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
        switch = " (while its block is on)" if path.split(".")[0] in SWITCHED else ""
        lines.append(f"| `{path}` | {'<br>'.join(map(_words, cases))}{switch} |")
    summary = ", ".join(f"{number} {status}" for status, number in counts.items())
    yield f"{len(lines)} keys: {summary} (counted by the best case of each).\n"
    yield "| key | fate |"
    yield "|---|---|"
    yield from lines


def _words(case: Case) -> str:
    condition = f" {case.when.words}" if case.when else ""
    return f"**{case.status}**{condition}: {case.by}"
