"""Bytes of optimizer state per element that a rank owns.

Every type that DeepSpeed builds itself, and the client optimizers people pass. Sources: the
state each optimizer creates, read from its code; 8-bit: one byte and one fp32 scale per block.
"""

from dataclasses import dataclass
from typing import Any

from dsconfig.runtimes.effective import Named


@dataclass(frozen=True, slots=True)
class OptimizerCost:
    """Bytes per element. ``states`` are fp32 tensors of the element's size.

    ``temporaries`` is what one step holds beside gradient and state, in fp32 tensors of the
    size it works on: 0 for fused kernels. ``eager`` optimizers make their state when built.
    ``other_bytes`` are bytes per element that are not fp32 tensors (8-bit moments).
    """

    states: float
    temporaries: int = 0
    eager: bool = False
    other_bytes: float = 0.0
    fused: bool = True

    def state_bytes(self, elements: int, width: int = 4) -> int:
        """Bytes for ``elements`` with states of ``width`` bytes."""
        return int(elements * (self.states * width + self.other_bytes))


ADAM = OptimizerCost(2)
TORCH_ADAM = OptimizerCost(2, temporaries=2, fused=False)
EIGHT_BIT = OptimizerCost(0, other_bytes=2 * (1 + 4 / 256))

COSTS: dict[str, OptimizerCost] = {
    "adam": ADAM,
    "adamw": ADAM,
    "fusedadam": ADAM,
    "deepspeedcpuadam": ADAM,
    "zenflowcpuadam": ADAM,
    "lamb": ADAM,
    "fusedlamb": ADAM,
    "lion": OptimizerCost(1),
    "fusedlion": OptimizerCost(1),
    "deepspeedcpulion": OptimizerCost(1),
    "adagrad": OptimizerCost(1, temporaries=1, eager=True, fused=False),
    "deepspeedcpuadagrad": OptimizerCost(1, eager=True),
    "rmsprop": OptimizerCost(1, temporaries=1, fused=False),
    "sgd": OptimizerCost(0, fused=False),
    "musgd": OptimizerCost(0, fused=False),
    "muadam": TORCH_ADAM,
    "muadamw": TORCH_ADAM,
    "nadam": TORCH_ADAM,
    "radam": TORCH_ADAM,
    "adamax": TORCH_ADAM,
    "adadelta": TORCH_ADAM,
    "asgd": OptimizerCost(1, fused=False),
    "muon": OptimizerCost(1, temporaries=1, fused=False),
    "onebitadam": OptimizerCost(3, fused=False),
    "zerooneadam": OptimizerCost(4, fused=False),
    "onebitlamb": OptimizerCost(4, fused=False),
    "adafactor": OptimizerCost(0.001, temporaries=1, fused=False),
    "adam8bit": EIGHT_BIT,
    "adamw8bit": EIGHT_BIT,
    "pagedadam8bit": EIGHT_BIT,
    "pagedadamw8bit": EIGHT_BIT,
}
"""By type in lower case. Adafactor keeps a row and a column per matrix: next to nothing."""


def optimizer_cost(optimizer: Named | None, client: str | None = None) -> OptimizerCost:
    """The cost of the configured optimizer, else of the client's; Adam when neither is known."""
    name = (optimizer.type if optimizer else client or "adamw").lower().replace("_", "")
    params: dict[str, Any] = dict(optimizer.params) if optimizer else {}
    cost = COSTS.get(name, ADAM)
    if name in {"sgd", "musgd"} and params.get("momentum"):
        return OptimizerCost(1, fused=False)
    if name in {"adam", "adamw"} and params.get("torch_adam"):
        return TORCH_ADAM
    return cost


def is_known(optimizer: Named | None) -> bool:
    """Whether the state of this optimizer is known, or Adam's is assumed."""
    return optimizer is None or optimizer.type.lower().replace("_", "") in COSTS
