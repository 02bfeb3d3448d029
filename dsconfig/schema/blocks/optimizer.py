"""Optimizer type and arguments."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from dsconfig.schema.declare import REQUIRED, Block, key
from dsconfig.schema.lazy import Variants
from dsconfig.schema.markers import AnyCase
from dsconfig.schema.optimizers import OPTIMIZERS, OWN
from dsconfig.schema.value_checks import A_NAME

if TYPE_CHECKING:
    from dsconfig.schema.blocks.optimizer_params import OptimizerParams

    OptimizerName = str
else:
    OptimizerName = Annotated[Literal[tuple(OPTIMIZERS)], AnyCase(*OWN)]
    OptimizerParams = Any

PARAMS = Variants(OPTIMIZERS, any_case=OWN, nullable=True)


class Optimizer(Block):
    """Optimizer that the engine creates."""

    type: OptimizerName = key(
        REQUIRED,
        "A DeepSpeed optimizer (case-insensitive) or a torch.optim class (exact spelling).",
        checks=(A_NAME,),
    )
    params: Annotated[OptimizerParams | None, PARAMS] = key(
        None, "Keyword arguments of the optimizer."
    )
    legacy_fusion: bool = key(
        False, "Use the old unscaling of the fp16 wrapper without ZeRO.", since="0.3.0"
    )
