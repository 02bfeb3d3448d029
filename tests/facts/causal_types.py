"""Parameter counts of every causal language model in transformers, live and computed."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from dsconfig.facts import FactError, hf_config

TOLERANCE = 0.03


class Counted(NamedTuple):
    live: int
    ours: int | None
    """None if the sizes are unknown."""
    assumed: tuple[str, ...] = ()

    @property
    def is_flagged(self) -> bool:
        """Whether the count is flagged as uncertain."""
        message = " ".join(self.assumed)
        return self.ours is None or "may be far off" in message or "other towers" in message

    @property
    def is_right(self) -> bool:
        return self.ours is not None and abs(self.ours / self.live - 1) <= TOLERANCE


def causal_types() -> list[str]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name in CONFIG_MAPPING)


def live_shapes(model_type: str, sizes: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return (config, parameter shapes by name) of a model on the meta device."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(model_type, **sizes)
    with torch.device("meta"):
        live = transformers.AutoModelForCausalLM.from_config(config)
    return config, {name: tuple(each.shape) for name, each in live.named_parameters()}


def counted(model_type: str) -> Counted | None:
    """Return the counts for the default config; None if transformers cannot build the model."""
    from math import prod

    try:
        config, shapes = live_shapes(model_type, {})
    except Exception:  # whatever a class of transformers does without arguments
        return None
    live = sum(map(prod, shapes.values()))
    try:
        tree = hf_config.model(config.to_dict())
    except FactError:
        return Counted(live, None)
    return Counted(live, tree.parameters, tree.assumed)
