"""DeepSpeed: how it handles "auto", and the values it changes while it reads a config.

Where it stops is in ``checks/refusals.py``.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

from dsconfig import batch
from dsconfig.facts import Facts
from dsconfig.lazy_imports import lazy_imports
from dsconfig.runtimes import reading
from dsconfig.runtimes.base import AUTO, AutoHandling, Instruction, Runtime
from dsconfig.runtimes.capabilities import steps_of
from dsconfig.runtimes.config_view import ConfigView
from dsconfig.runtimes.reading import typed_block
from dsconfig.runtimes.replay import (
    Failure,
    Replay,
    ReplayStop,
    Source,
    errors_at,
    run_replay,
    unknown_ranks,
)
from dsconfig.schema import paths
from dsconfig.schema.catalogue import blocks_in, find
from dsconfig.schema.paths import KeyPath
from dsconfig.schema.version import NEWEST, Version
from dsconfig.source.pointer import is_block, value_at

with lazy_imports():
    from dsconfig.runtimes import degrees
    from dsconfig.schema import optimizers

_STOPS_WHILE_READING = frozenset(
    {
        *paths.BATCH,
        paths.SEQUENCE_PARALLEL,
        paths.OPTIMIZER_PARAMS,
        paths.OPTIMIZER_PARAMS / "max_grad_norm",
    }
)
_STOPS_LATER = frozenset({("data_parallel_size",), paths.AUTOTP_SIZE})


class DeepSpeed(Runtime):
    """``until``: "parse" for parsing only, or "step" to include initialization and a step.

    ``mpu``: the script passes a model-parallel unit. Raises ValueError for another ``until``.
    """

    name = "deepspeed"
    set_elsewhere: ClassVar[Mapping[str, Instruction]] = {
        **Runtime.set_elsewhere,
        **steps_of("deepspeed"),
    }

    def __init__(
        self, version: Version = NEWEST, *, until: str = "step", mpu: bool = False
    ) -> None:
        if until not in ("parse", "step"):
            raise ValueError(f'until={until!r}: write "parse" or "step"')
        super().__init__(version=version)
        self.until = until
        self.mpu = mpu

    @property
    def builds_engine(self) -> bool:
        return self.until != "parse"

    def on_auto(self, path: tuple[str, ...], config: Mapping[str, Any]) -> AutoHandling:
        return auto_handling(path, config, self.version)

    def replay(self, config: dict[str, Any], facts: Facts) -> Replay:
        return Replay(config)

    def read(self, outcome: Replay, facts: Facts) -> None:
        _convert(outcome, self.version)
        name = value_at(outcome.config, paths.OPTIMIZER_TYPE, None)
        own = optimizers.optimizer_type(name.lower()) if isinstance(name, str) else None
        if own is not None and own.is_own_at(self.version):
            outcome.config["optimizer"]["type"] = name.lower()
        with suppress(ReplayStop):  # the placeholders of a template have no batch
            if not ConfigView(outcome.config, facts, self.version).is_elastic:
                solve_batch(outcome, facts, mpu=self.mpu)


def auto_handling(
    path: tuple[str, ...], config: Mapping[str, Any], version: Version
) -> AutoHandling:
    """Return how DeepSpeed handles "auto" at a path."""
    # An argument of an optimizer or a schedule; looking it up would import all of them.
    known = find(path) if path[1:2] != ("params",) else None
    if known is not None and known.means_auto:
        return AutoHandling.NATIVE
    if path in _STOPS_LATER:
        return AutoHandling.REFUSED_LATE
    block = typed_block(path)
    if block is not None and block.owner.history.is_closed_at(version):
        return AutoHandling.DEFAULT if block.nested else AutoHandling.REFUSED
    block = typed_block(path[:-1])
    if block is not None and block.owner.history.is_closed_at(version):
        dropped = block.owner.history.ignores_auto_at(version)
        return AutoHandling.DEFAULT if dropped else AutoHandling.REFUSED
    if path in _STOPS_WHILE_READING:
        return AutoHandling.REFUSED
    wanted = known.failed_check(AUTO, version) if known is not None else None
    if wanted is not None:
        return AutoHandling.REFUSED_LATE if wanted.late else AutoHandling.REFUSED
    if path[0] in ("optimizer", "scheduler"):
        around = config.get(path[0])
        # Without a type nothing is built, and the rest of the block is not read.
        is_built = not isinstance(around, dict) or "type" in around
        return AutoHandling.REFUSED_LATE if is_built else AutoHandling.KEPT
    return AutoHandling.KEPT


def _convert(outcome: Replay, version: Version) -> None:
    """Convert and drop values as DeepSpeed's models do, in place."""
    found = reading.read(outcome.config, version)
    for path, values in found.values.items():
        _convert_block(outcome, path, values)
    for entry in found.entries.values():
        if entry.outcome is reading.Outcome.DROPPED:
            _delete(outcome.config, entry.path)
    for block, content in list(blocks_in(outcome.config)):
        if content == AUTO and block.nested:
            message = '"auto" instead of a block counts as no block'
            outcome.record(block.path, message, Source.DEFAULT)
            _delete(outcome.config, block.path)


def _convert_block(outcome: Replay, path: KeyPath, values: Mapping[str, Any]) -> None:
    """Replace values by those that the models convert to: ``"2"`` and 2.0 become 2."""
    block, place = typed_block(path), value_at(outcome.config, path)
    if not is_block(place) or block is None or not block.owner.history.is_closed_at(NEWEST):
        return
    for key, written in list(place.items()):
        known = reading.field_in(block, key)
        if known is None or known.model_name not in values:
            continue
        value = values[known.model_name]
        if type(value) is not type(written):
            place[key] = value
            rule = "converted by DeepSpeed's model of the block"
            outcome.record(path / key, rule, Source.CONFIG)


def _delete(config: dict[str, Any], path: KeyPath) -> None:
    place = value_at(config, path.parent)
    if is_block(place):
        place.pop(path.name, None)


BATCH_KEYS = (*batch.KEYS, "sequence_parallel_size")
"""Keys of the batch arithmetic, which DeepSpeed runs on any value."""


def batch_failure(config: Mapping[str, Any], facts: Facts, *, mpu: bool) -> Failure | None:
    """Return the error of the batch arithmetic, or None if it has a result."""
    if facts.world_size is None:
        return None
    return run_replay(dict(config), solve_batch, facts, mpu).failure


def solve_batch(outcome: Replay, facts: Facts, mpu: bool) -> None:
    """Derive missing batch values as DeepSpeed does, in place: floats stay floats.

    ``mpu``: the script passes a model-parallel unit. Raises ReplayStop where the arithmetic fails,
    and MissingFact if the number of ranks is unknown.
    """
    config = outcome.config
    if facts.world_size is None:
        raise unknown_ranks()
    ranks: int | float = facts.world_size
    split = degrees.of_the_script(facts, config)
    if mpu or split.degrees.per_sample > 1:
        ranks = split.data_parallel or ranks
    elif "sequence_parallel_size" in config:
        with errors_at(paths.SEQUENCE_PARALLEL):
            ranks = batch.ranks_sharing(ranks, config["sequence_parallel_size"])
    given = batch.Triple(*(config.get(key) for key in batch.KEYS))
    with errors_at(*(path for path in paths.BATCH if path.name in given.given)):
        solved = given.derived(ranks)
        if solved is None:
            message = "neither train_batch_size nor train_micro_batch_size_per_gpu is set"
            raise ReplayStop("AssertionError", message, paths.GLOBAL_BATCH, paths.MICRO_BATCH)
        for path, value in zip(paths.BATCH, solved, strict=True):
            if not value > 0:
                message = f"{path.name} is {value}; it must be positive"
                raise ReplayStop("AssertionError", message, path)
        if not solved.holds(ranks):
            total, micro, steps = solved
            message = f"{total} is not {micro} * {steps} * {ranks} (micro * accumulation * ranks)"
            help = "delete train_batch_size, which is then derived from the other two"
            raise ReplayStop("AssertionError", message, *paths.BATCH, help=help)
    config.update(zip(batch.KEYS, solved, strict=True))
    for path in paths.BATCH:
        if path.name not in given.given:
            alone = path == paths.ACCUMULATION and len(given.given) == 1
            rule, source = _BATCH_RULES["alone" if alone else path.name]
            outcome.record(path, rule, Source(source), data_parallel=ranks)


_BATCH_RULES = {
    batch.GLOBAL: ("micro batch x accumulation x data-parallel ranks", "derived"),
    batch.MICRO: ("global batch // ranks // accumulation", "derived"),
    batch.STEPS: ("global batch // micro batch // ranks", "derived"),
    "alone": ("1, DeepSpeed's default if only one of the others is set", "default"),
}
"""How each missing value is derived."""

deepspeed = DeepSpeed  # looked up by program name
