"""The capability table: what dsengine does with each key, degree, style, optimizer and name."""

from collections.abc import Callable, Mapping
from typing import Literal

from dsconfig.features.deepspeed_names import ATTRIBUTES, FLAGS, NAMES, PARAMETERS, missing
from dsconfig.features.table import DEGREES, FEATURES, STYLES, Capability, Status
from dsconfig.planner.coverage import optimizer
from dsconfig.planner.coverage.cover import SWITCHED, rule_of
from dsconfig.planner.coverage.rules import Rule
from dsconfig.schema import KeyStatus, keys
from dsconfig.schema.optimizers import OPTIMIZERS

Kind = Literal[
    "key", "degree", "optimizer", "style", "feature", "name", "attribute", "parameter", "flag"
]
Table = Mapping[str, tuple[Capability, ...]]


def live_paths() -> list[str]:
    """Return the dotted paths of all keys that DeepSpeed 0.19.8 reads, except blocks."""
    live = [known.path for known in keys() if known.status is KeyStatus.LIVE]
    blocks = {path.rpartition(".")[0] for path in live}
    return [path for path in live if path not in blocks]


def _cases(rule: Rule | None) -> tuple[Capability, ...]:
    return tuple(
        case.capability._replace(condition=case.when.description if case.when else "")
        for case in rule or ()
    )


BLOCK_OFF = Capability(Status.INERT, "its block is disabled", condition="while `enabled` is off")
"""The first case of every key of a block with a switch, except the switch."""


def _of_key(path: str) -> tuple[Capability, ...]:
    block, _, name = path.partition(".")
    cases = _cases(rule_of(path))
    return (BLOCK_OFF, *cases) if block in SWITCHED and name != "enabled" else cases


def _one(table: Mapping[str, Capability]) -> Table:
    return {name: (capability,) for name, capability in table.items()}


def _names(table: Mapping[str, str], prefix: str = "") -> Table:
    return _one(
        {
            name: Capability(Status.REFUSED, *missing(prefix + name, instead).split(": ", 1))
            for name, instead in table.items()
        }
    )


_SPLIT = Capability(Status.HONOURED, "layers are split over tensor-parallel ranks")
TABLES: Mapping[Kind, Callable[[], Table]] = {
    "key": lambda: {path: _of_key(path) for path in live_paths()},
    "degree": lambda: _one(DEGREES),
    "optimizer": lambda: {name: _cases(optimizer.cases_of(name)) for name in OPTIMIZERS},
    "style": lambda: _one(dict.fromkeys(sorted(STYLES), _SPLIT)),
    "feature": lambda: _one(FEATURES),
    "name": lambda: _names(NAMES),
    "attribute": lambda: _names(ATTRIBUTES, "DeepSpeedEngine."),
    "parameter": lambda: _names(PARAMETERS, "Parameter."),
    "flag": lambda: _one(FLAGS),
}


def capabilities(kind: Kind) -> Table:
    """Return the cases of everything of a kind. Raises ValueError for an unknown kind."""
    if kind not in TABLES:
        raise ValueError(f"kind is {kind!r}: use {', '.join(TABLES)}")
    return TABLES[kind]()
