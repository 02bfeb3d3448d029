"""Generation with the model that an engine trains."""

from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch

from dsengine.communication.peers import in_phase
from dsengine.loop.counters import Counters
from dsengine.loop.offload_states import MODEL, Offloading
from dsengine.sharding import Sharding
from dsengine.topology import Topology


@dataclass(eq=False)
class Generation:
    """Lets the model generate between training steps."""

    sharding: Sharding
    topology: Topology
    offloading: Offloading
    counters: Counters

    @in_phase("generate")
    def generate(self, *args: Any, gather_once: bool | None = None, **kwargs: Any) -> Any:
        """Call the model's ``generate`` without gradients, on all ranks.

        Collective at stage 3, where all parameters are gathered once and resharded at the end, if
        every rank has free memory for them. Otherwise (or with ``gather_once=False``) each forward
        gathers block by block. Then, and if ranks divide experts, forwards are collective: a model
        of transformers gets ``synced_gpus=True``, so that ranks that generate fewer tokens wait for
        the others. Raises AttributeError if the model cannot generate.
        """
        self.offloading.require(MODEL, "generate()")
        module: Any = self.sharding.module
        generate = module.generate
        with torch.no_grad(), self.sharding.gathered(gather_once) as is_complete:
            if _syncs(module):
                shares_experts = self.topology.size("expert") > 1
                kwargs.setdefault("synced_gpus", shares_experts or not is_complete)
            return generate(*args, **kwargs)


def _syncs(model: Any) -> bool:
    """Whether the model's ``generate`` has the argument ``synced_gpus`` of transformers."""
    base = getattr(model, "get_base_model", lambda: model)()
    return "synced_gpus" in signature(base.generate).parameters
