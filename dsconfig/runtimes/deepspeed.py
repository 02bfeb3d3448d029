"""DeepSpeed without transformers or accelerate: how it handles a config."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dsconfig import batch
from dsconfig.lazy_imports import lazy_imports
from dsconfig.runtimes.base import AUTO, AutoHandling, Runtime
from dsconfig.runtimes.reading import typed_block
from dsconfig.schema.catalogue import find
from dsconfig.schema.version import NEWEST, Version

with lazy_imports():
    from dsconfig.runtimes.behavior import replay, standalone

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.runtimes.behavior.replay import Replay

_STOPS_WHILE_READING = frozenset(
    {
        *((key,) for key in batch.KEYS),
        ("sequence_parallel_size",),
        ("optimizer", "params"),
        ("optimizer", "params", "max_grad_norm"),
    }
)
_STOPS_LATER = frozenset({("data_parallel_size",), ("tensor_parallel", "autotp_size")})


class DeepSpeed(Runtime):
    """``until``: "parse" for parsing only, or "step" to include initialization and a step.

    ``mpu``: the script passes a model-parallel unit. Raises ValueError for another ``until``.
    """

    name = "deepspeed"

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

    def fill(self, config: dict[str, Any], facts: "Facts") -> "Replay":
        return replay.run_replay(config, standalone.run, facts, self)


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


deepspeed = DeepSpeed  # looked up by program name
