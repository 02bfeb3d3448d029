"""Train with dsengine in verl, and pass the weights to its rollout.

Only the part that concerns weights: ``initialize`` builds the engine, and ``get_per_tensor_param``
is what verl calls before each rollout. The other methods of ``BaseEngine`` call the engine's
``forward``, ``backward`` and ``step``.
"""

from collections.abc import Generator
from typing import Any

from torch import Tensor
from verl.workers.engine.base import BaseEngine, EngineRegistry

import dsengine


@EngineRegistry.register(model_type="language_model", backend="dsengine", device=["cuda", "cpu"])
class DSEngine(BaseEngine):
    """A model trained by dsengine.

    ``config``: a ds_config. ``sends_adapter``: pass only the adapter of peft to the rollout, which
    loads the base from the checkpoint (``rollout.load_format=safetensors``); otherwise it gets
    merged weights.
    """

    def __init__(self, model: Any, config: Any, sends_adapter: bool = False) -> None:
        self.model, self.config = model, config
        self.sends_adapter = sends_adapter

    def initialize(self) -> None:
        self.engine, *_ = dsengine.initialize(model=self.model, config=self.config)

    @property
    def is_param_offload_enabled(self) -> bool:
        return self.engine.zero_offload_param() is not None

    @property
    def is_optimizer_offload_enabled(self) -> bool:
        return self.engine.zero_offload_optimizer() is not None

    def get_per_tensor_param(
        self, layered_summon: bool = False, base_sync_done: bool = False
    ) -> tuple[Generator[tuple[str, Tensor], None, None], Any]:
        """Return the weights and, if they are those of an adapter, its configuration.

        ``layered_summon`` has no effect: layers are always gathered one by one.
        """
        del layered_summon
        if not self.sends_adapter:
            return (pair for pair in self.engine.iter_weights()), None
        if not base_sync_done:
            raise ValueError("sends_adapter: set rollout.load_format=safetensors")
        weights = self.engine.iter_weights(lora="adapter")
        return (pair for pair in weights), self.engine.module.peft_config["default"]
