"""Reference page ``docs/reference/engine-keys.md``."""

from collections.abc import Iterator, Mapping

from dsconfig.features.table import Capability, Status
from dsconfig.planner.capabilities import BLOCK_OFF, TABLES, Kind

TITLE = """# What dsengine supports

Generated from the table that `dsconfig plan`, `dsconfig tune` and the engine's errors use (`make
generate`); `dsconfig.capabilities` returns it. Each key that DeepSpeed 0.19.8 reads is *used* (with
the mechanism), *inert* (with the reason) or *refused* (with an alternative); the first line that
applies decides. All keys of a block with an `enabled` switch are inert while it is off. After the
keys: parallel degrees, optimizers, styles of a model's tensor-parallel plan, features, names below
`deepspeed`, attributes of its engine, flags of its launcher.
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([TITLE, *_key_rows(), *_other_sections()]) + "\n"


def _key_rows() -> Iterator[str]:
    table = TABLES["key"]()
    counts = dict.fromkeys(Status, 0)
    for cases in table.values():
        used = [case.status for case in cases if case is not BLOCK_OFF]
        counts[min(used, key=list(Status).index, default=Status.REFUSED)] += 1
    summary = ", ".join(f"{number} {status.label}" for status, number in counts.items())
    yield f"{len(table)} keys: {summary} (counted by the best case of each).\n"
    yield from _rows("key", table)


def _other_sections() -> Iterator[str]:
    for kind, table in TABLES.items():
        if kind != "key":
            yield f"\n## {kind.capitalize()}s\n"
            yield from _rows(kind, table())


def _rows(kind: Kind, table: Mapping[str, tuple[Capability, ...]]) -> Iterator[str]:
    yield f"| {kind} | handling |"
    yield "|---|---|"
    for name, cases in table.items():
        switch = " (if its block is enabled)" if BLOCK_OFF in cases else ""
        shown = "<br>".join(_describe(case) for case in cases if case is not BLOCK_OFF)
        yield f"| `{name}` | {shown}{switch} |"


def _describe(case: Capability) -> str:
    condition = f" {case.condition}" if case.condition else ""
    return f"**{case.status.label}**{condition}: {case.joined('; ')}"
