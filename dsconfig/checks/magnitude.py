"""Values that are valid, but of a magnitude that suggests another unit or a missing exponent."""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from dsconfig.checks.context import Context
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import Finding
from dsconfig.report import Effect
from dsconfig.schema.paths import OPTIMIZER_PARAMS, ZERO, KeyPath


class Usual(NamedTuple):
    """Usual values of a key: from ``low`` to ``high``, with what other values suggest."""

    low: float
    high: float
    if_low: str
    if_high: str


_BUCKET = Usual(
    10_000,
    5e9,
    "it counts elements, not MB, and nearly every parameter is reduced or gathered by itself",
    "it counts elements, not bytes, and a bucket takes two bytes or more per element",
)
_ELEMENTS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"reduce_bucket_size": (1, 2, 3), "allgather_bucket_size": (1, 2)}
)
"""Keys that count elements, with the stages at which they have an effect."""
_ADAPTIVE_TYPE = re.compile("adam|lion", re.IGNORECASE)
"""Types of optimizers whose step has about the size of the learning rate."""
_ADAPTIVE = Usual(0, 1, "", "Adam and its variants usually train with 1e-6 to 1e-2")
_DECAY = Usual(0, 1, "", "decoupled weight decay is usually 0 to 0.3")


@rule("DSC037", Effect.NOTE, triggers="zero_optimization optimizer")
def unusual_magnitude(config: Context) -> Iterator[Finding]:
    """Value of an unusual magnitude

    The value is valid and used, but typical of another unit, such as MB or bytes for a size in
    elements, or of a missing exponent, such as 5 for 5e-5.

    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "reduce_bucket_size": 500}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8}}
    """
    for key, stages in _ELEMENTS.items():
        if config.stage_is_known and config.stage in stages:
            yield from _unusual(config, ZERO / key, _BUCKET)
    if config.optimizer is not None and _ADAPTIVE_TYPE.search(config.optimizer):
        yield from _unusual(config, OPTIMIZER_PARAMS / "lr", _ADAPTIVE)
        yield from _unusual(config, OPTIMIZER_PARAMS / "weight_decay", _DECAY)


def _unusual(config: Context, path: KeyPath, usual: Usual) -> Iterator[Finding]:
    value = config.number(*path)
    if value is None or usual.low <= value <= usual.high:
        return
    why = usual.if_low if value < usual.low else usual.if_high
    if not why:
        return  # out of range, which DSC614 reports
    yield Finding(
        path=path,
        message=f"{path[-1]} is {value:g}: {why}",
        help="check the unit and the exponent",
    )
