"""What DeepSpeed builds for the blocks of optimizer and scheduler, and which arguments it takes."""

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
"""Declared for every optimizer, so that the fault has a name; no class takes it."""


class Built(NamedTuple):
    """The class that a type leads to, and the arguments it takes; None where it takes any."""

    kind: OptimizerClass
    arguments: frozenset[str] | None


def optimizer_built(
    name: str, params: Mapping[str, Any], release: Version, *, offloaded: bool
) -> Built | None:
    """What an optimizer's ``type`` leads to in a release; None for a name that leads nowhere."""
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
    """What is taken of ``params`` when a class is built for a type; None where anything is."""
    if OPTIMIZER_CLASSES[class_name].takes_any_argument:
        return None
    declared = Lazy(OPTIMIZERS[type_name].block, type_name).load().model_fields
    return frozenset(
        name
        for name, field in declared.items()
        if name != REFUSED and class_name in (declaration_of(field).taken_by or (class_name,))
    )


def engine_takes(name: str, params: Mapping[str, Any], argument: str) -> bool | None:
    """Whether dsengine's class for a type takes an argument; None where it builds none."""
    found = optimizer_type(name)
    ours = found.class_in_engine(params) if found is not None else None
    if found is None or ours is None:
        return None
    known = arguments_of(found.name, ours)
    return known is None or argument in known


class Schedule(NamedTuple):
    """The schedule that a type leads to; ``required`` arguments have no default."""

    kind: ScheduleType
    arguments: frozenset[str]
    required: tuple[str, ...]


@cache
def schedule_built(name: str) -> Schedule | None:
    """What a scheduler's ``type`` leads to, None for an unknown name."""
    kind = SCHEDULES.get(name)
    if kind is None:
        return None
    declared = Lazy(kind.block, name).load().model_fields
    required = tuple(argument for argument, field in declared.items() if field.is_required())
    return Schedule(kind, frozenset(declared), required)
