"""The optimizer that the Trainer builds for each value of ``optim`` in TrainingArguments.

Names: ``OptimizerNames`` of transformers 5.23 and 5.24. Classes: the handlers of its
trainer_optimizer.py.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from dsconfig.schema.optimizers import OPTIMIZER_CLASSES, OptimizerClass

_FUSED = {"fused": True}

TRAINER_OPTIMIZERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "adamw_torch": ("torch.AdamW", {}),
    "adamw_torch_fused": ("torch.AdamW", _FUSED),
    "adamw_torch_xla": ("torch.AdamW", _FUSED),
    "adamw_torch_npu_fused": ("torch.AdamW", _FUSED),
    "adafactor": ("transformers.Adafactor", {}),
    "adamw_anyprecision": ("AnyPrecisionAdamW", {}),
    "adamw_torch_4bit": ("AdamW4bit", {}),
    "adamw_torch_8bit": ("torchao.AdamW8bit", {}),
    "ademamix": ("AdEMAMix", {}),
    "sgd": ("torch.SGD", {}),
    "adagrad": ("torch.Adagrad", {}),
    "adamw_bnb_8bit": ("AdamW8bit", {}),
    "adamw_8bit": ("AdamW8bit", {}),
    "ademamix_8bit": ("AdEMAMix8bit", {}),
    "lion_8bit": ("Lion8bit", {}),
    "lion_32bit": ("Lion32bit", {}),
    "paged_adamw_32bit": ("PagedAdamW", {}),
    "paged_adamw_8bit": ("PagedAdamW8bit", {}),
    "paged_ademamix_32bit": ("PagedAdEMAMix", {}),
    "paged_ademamix_8bit": ("PagedAdEMAMix8bit", {}),
    "paged_lion_32bit": ("PagedLion", {}),
    "paged_lion_8bit": ("PagedLion8bit", {}),
    "rmsprop": ("torch.RMSprop", {}),
    "rmsprop_bnb": ("RMSprop32bit", {}),
    "rmsprop_bnb_8bit": ("RMSprop8bit", {}),
    "rmsprop_bnb_32bit": ("RMSprop32bit", {}),
    "galore_adamw": ("GaLoreAdamW", {}),
    "galore_adamw_8bit": ("GaLoreAdamW8bit", {}),
    "galore_adafactor": ("GaLoreAdafactor", {}),
    "galore_adamw_layerwise": ("GaLoreAdamW", {}),
    "galore_adamw_8bit_layerwise": ("GaLoreAdamW8bit", {}),
    "galore_adafactor_layerwise": ("GaLoreAdafactor", {}),
    "lomo": ("Lomo", {}),
    "adalomo": ("AdaLomo", {}),
    "grokadamw": ("GrokAdamW", {}),
    "schedule_free_radam": ("RAdamScheduleFree", {}),
    "schedule_free_adamw": ("AdamWScheduleFree", {}),
    "schedule_free_sgd": ("SGDScheduleFree", {}),
    "apollo_adamw": ("APOLLOAdamW", {}),
    "apollo_adamw_layerwise": ("APOLLOAdamW", {}),
    "stable_adamw": ("StableAdamW", {}),
}
"""Class and arguments by name."""


class TrainerOptimizer(NamedTuple):
    """The optimizer that the Trainer builds."""

    name: str
    kind: OptimizerClass
    params: Mapping[str, Any]

    @property
    def label(self) -> str:
        """Return the name with its class."""
        return f"{self.kind.name} (optim={self.name})"

    @property
    def on_host(self) -> "TrainerOptimizer":
        """What accelerate replaces it by if its states are offloaded
        (``map_pytorch_optim_to_deepspeed`` of 1.15)."""
        kind = _ON_HOST.get(self.kind.name, "DeepSpeedCPUAdam")
        return self._replace(kind=OPTIMIZER_CLASSES[kind], params={})


_ON_HOST: Mapping[str, str] = {
    "torch.Adagrad": "DeepSpeedCPUAdagrad",
    "Lion32bit": "DeepSpeedCPULion",
    "PagedLion": "DeepSpeedCPULion",
}
ADAMW_ON_HOST = frozenset(("torch.AdamW", "PagedAdamW"))
KEPT_ON_HOST = ADAMW_ON_HOST | _ON_HOST.keys()
"""Classes of which accelerate uses DeepSpeed's variant if their states are offloaded."""


def trainer_optimizer(arguments: Mapping[str, Any]) -> TrainerOptimizer | None:
    """Return the optimizer of these TrainingArguments; None if ``optim`` is missing or unknown."""
    name = str(arguments.get("optim", ""))
    built = TRAINER_OPTIMIZERS.get(name)
    if built is None:
        return None
    chosen = _arguments(arguments.get("optim_args"))
    return TrainerOptimizer(name, OPTIMIZER_CLASSES[built[0]], {**built[1], **chosen})


def _arguments(text: object) -> dict[str, Any]:
    """Return the arguments that add states, of a text such as ``momentum=0.9,centered=True``."""
    pairs = (part.partition("=") for part in str(text or "").replace(" ", "").split(","))
    named = {name: value for name, _, value in pairs}
    arguments: dict[str, Any] = {}
    try:
        arguments["momentum"] = float(named.get("momentum", 0))
    except ValueError:
        return arguments
    arguments["centered"] = named.get("centered", "").lower() in ("true", "1", "yes")
    return arguments
