"""The optimizer and the scheduler that DeepSpeed builds, and the arguments they accept."""

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from dsconfig.schema.declare import declaration_of
from dsconfig.schema.lazy import Lazy
from dsconfig.schema.optimizers import (
    OPTIMIZER_CLASSES,
    OPTIMIZERS,
    TORCH,
    OptimizerClass,
    optimizer_type,
)
from dsconfig.schema.schedules import SCHEDULES, ScheduleType
from dsconfig.schema.version import Version

REFUSED = "max_grad_norm"
"""Declared for every optimizer so that it can be reported; no class accepts it."""


class Built(NamedTuple):
    """The class built for a type and the arguments it accepts; None: any."""

    kind: OptimizerClass
    arguments: frozenset[str] | None


def optimizer_built(
    name: str, params: Mapping[str, Any], release: Version, *, offloaded: bool
) -> Built | None:
    """Return the class built for an optimizer's ``type`` at a release; None if unknown."""
    found = optimizer_type(name)
    if found is None:
        return None
    if found.is_own_at(release):
        kind = OPTIMIZER_CLASSES[found.class_in_deepspeed(params, offloaded=offloaded)]
    else:
        kind = OPTIMIZER_CLASSES.get(f"{TORCH}{name}")
    return Built(kind, arguments_of(found.name, kind.name)) if kind is not None else None


@cache
def arguments_of(type_name: str, class_name: str) -> frozenset[str] | None:
    """Return the accepted ``params`` of a class built for a type; None: any."""
    if OPTIMIZER_CLASSES[class_name].takes_any_argument:
        return None
    declared = Lazy(OPTIMIZERS[type_name].block, type_name).load().model_fields
    return frozenset(
        name
        for name, field in declared.items()
        if name != REFUSED and class_name in (declaration_of(field).taken_by or (class_name,))
    )


def engine_takes(name: str, params: Mapping[str, Any], argument: str) -> bool | None:
    """Return whether dsengine's class for a type accepts an argument; None if it builds none."""
    found = optimizer_type(name)
    ours = found.class_in_engine(params) if found is not None else None
    if found is None or ours is None:
        return None
    known = arguments_of(found.name, ours)
    return known is None or argument in known


class Schedule(NamedTuple):
    """The schedule for a type; ``required`` arguments have no default."""

    kind: ScheduleType
    arguments: frozenset[str]
    required: tuple[str, ...]


@cache
def schedule_built(name: str) -> Schedule | None:
    """Return the schedule for a scheduler's ``type``; None if unknown."""
    kind = SCHEDULES.get(name)
    if kind is None:
        return None
    declared = Lazy(kind.block, name).load().model_fields
    required = tuple(argument for argument, field in declared.items() if field.is_required())
    return Schedule(kind, frozenset(declared), required)
