"""What the optimizer in force keeps for each element that a rank owns, and needs in a step."""

from dataclasses import dataclass

from dsconfig.runtimes.effective import Named
from dsconfig.schema.optimizers import OPTIMIZER_CLASSES, OptimizerClass, optimizer_type


@dataclass(frozen=True, slots=True)
class OptimizerCost:
    """``states`` are tensors of the element's size; the rest as in ``OptimizerClass``."""

    states: float
    temporaries: int = 0
    eager: bool = False
    other_bytes: float = 0.0
    fused: bool = True
    leaves_to_adam: tuple[str, ...] = ()

    def state_bytes(self, elements: int, width: int = 4) -> int:
        """Bytes for ``elements`` with states of ``width`` bytes."""
        return int(elements * (self.states * width + self.other_bytes))


def optimizer_cost(
    optimizer: Named | None,
    client: str | None = None,
    *,
    offloaded: bool = False,
    in_engine: bool = False,
) -> OptimizerCost:
    """The cost of the configured optimizer, else of the client's; Adam when neither is known.

    ``in_engine``: with the states of the class that dsengine builds, not DeepSpeed.
    """
    name = optimizer.type if optimizer else client or "AdamW"
    params = dict(optimizer.params) if optimizer else {}
    found = optimizer_type(name)
    kind = _class_named(name)
    if found is not None:
        kind = OPTIMIZER_CLASSES[found.class_in_deepspeed(params, offloaded=offloaded)]
    ours = found.class_in_engine(params) if found is not None and in_engine else None
    keeps = OPTIMIZER_CLASSES[ours] if ours is not None else kind
    return OptimizerCost(
        states=len(keeps.states_for(params)),
        temporaries=kind.temporaries,
        eager=kind.is_eager,
        other_bytes=kind.other_bytes,
        fused=kind.is_fused,
        leaves_to_adam=kind.leaves_to_adam,
    )


_BY_LOWER_NAME = {
    name.lower().removeprefix("torch."): kind for name, kind in OPTIMIZER_CLASSES.items()
}


def _class_named(client: str) -> OptimizerClass:
    """The class of an optimizer that a script passes, whatever its spelling; Adam if unknown."""
    return _BY_LOWER_NAME.get(client.lower().replace("_", ""), OPTIMIZER_CLASSES["FusedAdam"])
