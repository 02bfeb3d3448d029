"""Coverage of a config: one row per key."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, cast

from dsconfig.features.table import Status
from dsconfig.planner.coverage import (
    experts,
    optimizer,
    other_engines,
    reporting,
    training,
    zero,
)
from dsconfig.planner.coverage.rules import OFF, Rule, decide, inert
from dsconfig.planner.plan import Coverage
from dsconfig.runtimes.effective import Effective
from dsconfig.schema.key_index import canonical_path, is_live
from dsconfig.schema.paths import KeyPath, escape
from dsconfig.source.document import OWN_KEYS
from dsconfig.source.pointer import is_block, lookup, split

RULES: Mapping[str, Rule] = {
    **training.RULES,
    **zero.RULES,
    **optimizer.RULES,
    **reporting.RULES,
    **other_engines.RULES,
    **experts.RULES,
}
"""By dotted path; ``*`` matches any name."""
BLOCKS = frozenset(path[:end] for path in RULES for end, letter in enumerate(path) if letter == ".")
"""Dotted paths of the blocks whose keys have rules."""
FAMILIES: Mapping[str, Rule] = {
    **other_engines.FAMILIES,
    **experts.FAMILIES,
    **optimizer.FAMILIES,
}
"""By dotted prefix, for blocks whose keys share one rule."""
SWITCHED = frozenset(
    {*reporting.SWITCHED, *training.SWITCHED, *other_engines.SWITCHED, *experts.SWITCHED}
)
"""Blocks with an ``enabled`` switch: while it is off, all their keys are inert."""


def coverage(effective: Effective) -> tuple[Coverage, ...]:
    """Return one row per leaf of the config, in the order of the file."""
    config = effective.config
    rows: list[Coverage] = []
    for pointer in leaf_pointers(config):
        status, by = _handling(pointer, lookup(config, pointer), effective)
        rows.append(Coverage(pointer=pointer, status=status, by=by))
    return tuple(rows)


def may_refuse(config: Mapping[str, Any]) -> bool:
    """Return whether a row could be refused, according to the unresolved config."""
    supported = optimizer.is_supported(config.get("optimizer"))
    return any(
        _may_refuse(split(pointer), lookup(config, pointer))
        for pointer in leaf_pointers(config)
        if not (supported and pointer.startswith("/optimizer/"))
    )


def _is_annotation(path: tuple[str, ...]) -> bool:
    return not path or path[0] in OWN_KEYS or path[-1].startswith(("_", "//"))


def _may_refuse(path: KeyPath, value: Any) -> bool:
    if _is_annotation(path):
        return False
    rule = _rule_at(path)
    if rule is None:
        return is_live(path)
    return any(case.status is Status.REFUSED for case in rule) and not (
        rule[0].when is OFF and rule[0].status is not Status.REFUSED and not value
    )


def leaf_pointers(value: Any, pointer: str = "") -> Iterator[str]:
    """Yield the pointers of all leaves of a config: scalars, lists, and empty blocks."""
    if isinstance(value, Mapping) and value:
        for key, child in cast("Mapping[str, Any]", value).items():
            yield from leaf_pointers(child, f"{pointer}/{escape(str(key))}")
    else:
        yield pointer


def _handling(pointer: str, value: Any, effective: Effective) -> tuple[Status, str]:
    path = split(pointer)
    if _is_annotation(path):
        return Status.INERT, "annotation, not read by DeepSpeed"
    block = path[0]
    written = effective.config.get(block)
    is_on = is_block(written) and bool(written.get("enabled"))
    if block in SWITCHED and not is_on:
        if path == (block, "enabled"):
            return Status.HONOURED, f"{block} is disabled"
        return Status.INERT, f"{block}.enabled is false"
    rule = _rule_at(path)
    if rule is None and not is_live(path):
        return Status.INERT, "unknown key: not read by DeepSpeed or dsengine"
    if rule is None:
        return Status.REFUSED, "not supported by dsengine; remove the key"
    case = decide(rule, value, effective)
    return case.status, case.by


def _rule_at(path: KeyPath) -> Rule | None:
    """Return the rule at a path; None for names with a dot, which are not keys."""
    return None if any("." in name for name in path) else rule_of(canonical_path(path).dotted)


@lru_cache(maxsize=1024)
def rule_of(path: str) -> Rule | None:
    """Return the rule of a dotted path: its own, or that of the nearest enclosing family."""
    if path in RULES:
        return RULES[path]
    parts = path.split(".")
    if parts[:-1] == ["optimizer", "params"]:
        return optimizer.argument(parts[-1])
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        if prefix in FAMILIES:
            return FAMILIES[prefix]
    return EMPTY_BLOCK if path in BLOCKS else None


EMPTY_BLOCK = inert("empty block: defaults apply")
