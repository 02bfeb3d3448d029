"""The optimizer: its name, and the arguments it is built with."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from dsconfig.schema.declare import REQUIRED, Block, key
from dsconfig.schema.lazy import Lazy, Variants
from dsconfig.schema.markers import AnyCase

if TYPE_CHECKING:
    from dsconfig.schema.blocks.optimizer_params import OptimizerParams

ADAM = ("Adam", "AdamW")
BESIDE_ADAM = ("Adagrad", "Lamb", "Lion", "Muon", "MuAdam", "MuAdamW", "MuSGD")
DEEPSPEED = ADAM + BESIDE_ADAM
"""Names that DeepSpeed knows in any letter case."""
RETIRED = ("OneBitAdam", "OneBitLamb", "ZeroOneAdam")
"""Names that it knew up to 0.19.6."""
TORCH = (
    "ASGD",
    "Adadelta",
    "Adafactor",
    "Adamax",
    "LBFGS",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
    "SparseAdam",
)
"""Classes of torch.optim, spelled exactly; DeepSpeed's own names hide torch's."""

OptimizerName = Annotated[
    Literal[
        "Adam",
        "AdamW",
        "Adagrad",
        "Lamb",
        "Lion",
        "Muon",
        "MuAdam",
        "MuAdamW",
        "MuSGD",
        "ASGD",
        "Adadelta",
        "Adafactor",
        "Adamax",
        "LBFGS",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "SGD",
        "SparseAdam",
        "OneBitAdam",
        "OneBitLamb",
        "ZeroOneAdam",
    ],
    AnyCase(*DEEPSPEED, *RETIRED),
]

PARAMS = Variants(
    {
        **{name: Lazy("optimizer_params", name) for name in ADAM},
        **{name: Lazy("deepspeed_optimizers", name) for name in BESIDE_ADAM},
        **{name: Lazy("torch_optimizers", name) for name in TORCH},
        **{name: Lazy("onebit_optimizers", name) for name in RETIRED},
    },
    any_case=DEEPSPEED + RETIRED,
    nullable=True,
)

if not TYPE_CHECKING:
    OptimizerParams = Any


class Optimizer(Block):
    """The optimizer that the engine builds."""

    type: OptimizerName = key(
        REQUIRED,
        "DeepSpeed's optimizers in any letter case, or a class of torch.optim spelled exactly.",
    )
    params: Annotated[OptimizerParams | None, PARAMS] = key(
        None, "Keyword arguments of the optimizer."
    )
    legacy_fusion: bool = key(
        False, "The former unscaling path of the fp16 wrapper without ZeRO.", since="0.3.0"
    )
