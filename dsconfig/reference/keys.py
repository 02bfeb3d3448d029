"""Reference text of config keys: for ``explain`` and docs/reference/keys.md."""

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from dsconfig.cost.buckets import HISTORY
from dsconfig.lazy_imports import lazy_imports
from dsconfig.planner.coverage.cover import rule_of as engine_rule
from dsconfig.reference import deepspeed_docs
from dsconfig.resolver.policy import POLICY
from dsconfig.runtimes import AutoHandling, every_runtime
from dsconfig.schema import NEWEST, Key, KeyStatus, Version, key, keys, strict_since
from dsconfig.source.pointer import dotted

with lazy_imports():
    from dsconfig.schema import spelling


def keys_named(name: str) -> list[Key]:
    """Return the key at a dotted path or JSON Pointer, or all keys with that last part.

    Raises ValueError with the nearest name if there is none.
    """
    path = dotted(name) if name.startswith("/") else name
    exact = key(path)
    if exact is not None:
        return [exact]
    found = [each for each in keys() if path in (each.name, *each.aliases)]
    if not found:
        known = [each.path for each in keys()]
        last = {each.rpartition(".")[2] for each in known}
        near = spelling.closest(path, known) or spelling.closest(path, last)
        hint = f"; did you mean {near}?" if near else ""
        raise ValueError(f"unknown key {name!r}{hint}")
    return found


WIDTH = 11
"""Columns of the labels."""


def key_as_text(one: Key) -> str:
    """Return the explanation of a key for a terminal."""
    lines = [one.path, f"  {one.doc}", ""]
    lines += [f"  {label:<{WIDTH}} {text}".rstrip() for label, text in rows(one)]
    return "\n".join(lines)


def rows(one: Key) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line; only the first line of a group has a label."""
    yield "type", one.expected
    if one.required or one.required_when:
        yield "required", f"if {one.required_when} is true" if one.required_when else "always"
    yield from _labelled("default", list(defaults(one)))
    yield from _labelled("bounds", list(earlier_bounds(one)))
    if one.unit:
        yield "unit", one.unit
    yield "releases", supported_releases(one)
    yield "checked", checked(one)
    if one.memory:
        yield "memory", one.memory
        if "4.5x" in one.memory:
            yield "", HISTORY
    if not one.is_block:
        yield from _labelled("auto", [f"{name}: {text}" for name, text in auto(one)])
        yield from _labelled("dsengine", list(engine(one)))
    if one.applies_to:
        yield "applies to", ", ".join(one.applies_to)
    if one.aliases:
        yield "also named", ", ".join(one.aliases)
    if one.replaced_by:
        yield "use instead", one.replaced_by
    if one.related:
        yield "see also", ", ".join(one.related)
    address = deepspeed_docs.link(one.path)
    if address is not None:
        yield "DeepSpeed", address
    if one.is_block:
        yield from _labelled("keys", [each.path for each in children(one)])


def _labelled(label: str, texts: list[str]) -> Iterator[tuple[str, str]]:
    for index, text in enumerate(texts):
        yield ("" if index else label), text


def children(block: Key) -> list[Key]:
    """Return the direct children of a block that the newest release reads."""
    live = (each for each in keys() if each.status is KeyStatus.LIVE)
    return [each for each in live if each.path.rpartition(".")[0] == block.path]


def defaults(one: Key) -> Iterator[str]:
    """Yield the default, then earlier ones with the release that changed them."""
    if one.is_block or one.required:
        return
    yield "none" if one.default is None and not one.shape.nullable else _shown(one.default)
    for changed, value in reversed(one.earlier_defaults):
        yield f"{_shown(value)} before {changed}"


def earlier_bounds(one: Key) -> Iterator[str]:
    for changed, bounds in one.earlier_bounds:
        limits = {name: limit for name, limit in bounds._asdict().items() if limit is not None}
        yield f"{_shown(limits) if limits else 'none'} before {changed}"


def supported_releases(one: Key) -> str:
    """Return the releases that read a key."""
    if one.status is KeyStatus.EXTERNAL:
        return "read by another program, not by DeepSpeed"
    if one.since is None:
        return "not read by any release" + _refused(one)
    start = f"since {one.since}" if one.since > Version(0, 3, 0) else "since 0.3.0 or earlier"
    gap = f", not from {one.gap[0]} to {one.gap[1]}" if one.gap else ""
    if one.until is None:
        return f"{start}{gap}"
    return f"{start}, until {one.until}{gap}{_refused(one)}"


def _refused(one: Key) -> str:
    return f"; rejected since {one.refused_from}" if one.refused_from else ""


def checked(one: Key) -> str:
    """Return how DeepSpeed checks the type of the value, or unknown keys of a block."""
    if one.is_block and one.path.count(".params") == 0:
        spans = [
            f"from {start}" + (f" to {end}" if end else "") for start, end in strict_since(one.path)
        ]
        handling = f"rejected {' and '.join(spans)}" if spans else "ignored"
        return f"unknown keys in this block are {handling}"
    if one.checked_since is None:
        return "not checked by DeepSpeed; a wrong type fails later or not at all"
    return f"wrong types are rejected since {one.checked_since}"


def auto(one: Key) -> Iterator[tuple[str, str]]:
    """Yield how each program handles "auto"."""
    if one.status is not KeyStatus.LIVE:
        return
    default = _shown(one.default)
    for runtime in every_runtime(NEWEST):
        fate = runtime.on_auto(one.key_path, {})
        if fate is AutoHandling.FILLED:
            text = (runtime.auto_fills or POLICY).get(one.key_path)
            yield runtime.name, text or f"the default, {default}"
        else:
            yield runtime.name, _AUTO_HANDLING[fate].format(default=default)


def engine(one: Key) -> Iterator[str]:
    """Yield how dsengine handles the key; the first case that applies is used."""
    if one.status is KeyStatus.LIVE:
        for case in engine_rule(one.path) or ():
            condition = f" {case.when.description}" if case.when else ""
            yield f"{case.status.label}{condition}: {case.by}"


_AUTO_HANDLING = {
    AutoHandling.NATIVE: "a supported value",
    AutoHandling.DEFAULT: "silently ignored; the default applies ({default})",
    AutoHandling.KEPT: "kept as a string, which is true",
    AutoHandling.REFUSED: "rejected when the config is read",
    AutoHandling.REFUSED_LATE: "rejected when the engine is built or at a step",
}


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def key_as_data(one: Key) -> dict[str, Any]:
    """Return the JSON form of a key."""
    return {
        "path": one.path,
        "doc": one.doc,
        "type": one.type,
        "choices": list(one.choices),
        "bounds": {n: limit for n, limit in one.bounds._asdict().items() if limit is not None},
        "default": one.default,
        "earlier_defaults": [
            {"before": str(changed), "default": value} for changed, value in one.earlier_defaults
        ],
        "required": one.required,
        "unit": one.unit,
        "status": one.status,
        "since": _text(one.since),
        "until": _text(one.until),
        "refused_from": _text(one.refused_from),
        "checked_since": _text(one.checked_since),
        "memory": one.memory,
        "auto": dict(auto(one)) if not one.is_block else {},
        "applies_to": list(one.applies_to),
        "aliases": list(one.aliases),
        "replaced_by": one.replaced_by,
        "related": list(one.related),
        "deepspeed_docs": deepspeed_docs.link(one.path),
    }


def _text(version: Version | None) -> str | None:
    return None if version is None else str(version)


TITLE = f"""# Every key of a ds_config

Generated from the declarations in `dsconfig/schema`: `make generate`.
`dsconfig explain KEY` prints more about a key: its effect on memory, how programs handle "auto",
and when DeepSpeed checks it. First the keys that DeepSpeed {NEWEST} reads, by block; at the end
those it no longer reads.
"""
COLUMNS = "| key | type | default | releases | meaning |\n|---|---|---|---|---|"


def reference_page() -> str:
    """``docs/reference/keys.md``, the table of all keys."""
    all_keys = list(keys())
    live = [key for key in all_keys if key.status is KeyStatus.LIVE]
    others = [key for key in all_keys if key.status is not KeyStatus.LIVE]
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
    cells = (
        f"`{key.path}`",
        key.expected,
        "<br>".join(defaults(key)),
        supported_releases(key),
        " ".join(_sentences(key)),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


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
