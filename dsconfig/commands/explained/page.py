"""The reference page ``docs/keys.md``."""

from collections.abc import Iterator
from itertools import groupby

from dsconfig.commands.explained.key import defaults, life
from dsconfig.schema import NEWEST, Key, KeyStatus, keys

TITLE = f"""# Every key of a ds_config

Generated from the declarations in `dsconfig/schema`: `make generate`.
`dsconfig explain KEY` says more about one key: what it does to memory, what becomes of "auto",
when DeepSpeed checks it. First what DeepSpeed {NEWEST} reads, block by block; at the end what it
reads no more.
"""
COLUMNS = "| key | type | default | releases | meaning |\n|---|---|---|---|---|"


def page() -> str:
    """The whole page as Markdown."""
    known = list(keys())
    live = [key for key in known if key.status is KeyStatus.LIVE]
    others = [key for key in known if key.status is not KeyStatus.LIVE]
    plain = [key for key in live if "." not in key.path and not key.is_block]
    sections = [_section("At the top level", plain)]
    for block, members in groupby(live, key=lambda key: key.path.partition(".")[0]):
        below = list(members)
        if below[0].is_block:
            sections.append(_section(f"`{block}`", below[1:], below[0].doc))
    sections.append(_section("Not read by this release", others))
    return "\n".join([TITLE, *sections])


def _section(title: str, members: list[Key], doc: str = "") -> str:
    remark = f"{doc}\n\n" if doc else ""
    return f"## {title}\n\n{remark}{COLUMNS}\n" + "\n".join(map(_row, members)) + "\n"


def _row(key: Key) -> str:
    cells = (f"`{key.path}`", key.expected, "<br>".join(defaults(key)), life(key), _meaning(key))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _meaning(key: Key) -> str:
    return " ".join(_sentences(key))


def _sentences(key: Key) -> Iterator[str]:
    yield key.doc
    if key.unit:
        yield f"Unit: {key.unit}."
    if key.memory:
        yield f"Memory: {key.memory}."
    if key.applies_to and len(key.applies_to) <= 8:
        yield f"For {', '.join(key.applies_to)}."
    if key.aliases:
        yield f"Also named {', '.join(f'`{name}`' for name in key.aliases)}."
    if key.replaced_by:
        yield f"Use `{key.replaced_by}`."
