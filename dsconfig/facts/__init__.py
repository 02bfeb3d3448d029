"""What is known about the model, the hardware and the training run, with the origin of each fact.

Names are imported on first use, because most checks need no facts.
"""

from typing import TYPE_CHECKING

from dsconfig.lazy_imports import lazy_attributes

if TYPE_CHECKING:
    from dsconfig.facts.facts import Facts
    from dsconfig.facts.gathering import gather
    from dsconfig.facts.hf_config import architecture_of
    from dsconfig.facts.inputs import FactError
    from dsconfig.facts.machine import DeviceFacts, HostFacts
    from dsconfig.facts.model import Architecture, ModelTree, ModuleFact, TensorFact
    from dsconfig.facts.training import TrainingFacts

__getattr__ = lazy_attributes(
    __name__,
    {
        "facts": ("Facts",),
        "gathering": ("gather",),
        "inputs": ("FactError",),
        "hf_config": ("architecture_of",),
        "machine": ("DeviceFacts", "HostFacts"),
        "model": ("Architecture", "ModelTree", "ModuleFact", "TensorFact"),
        "training": ("TrainingFacts",),
    },
)

__all__ = [
    "Architecture",
    "DeviceFacts",
    "FactError",
    "Facts",
    "HostFacts",
    "ModelTree",
    "ModuleFact",
    "TensorFact",
    "TrainingFacts",
    "architecture_of",
    "gather",
]
