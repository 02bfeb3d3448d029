"""What is known about model, hardware, host and training run, each with its origin."""

from dsconfig.facts.facts import DeviceFacts, Facts, HostFacts, TrainingFacts
from dsconfig.facts.model import Architecture, ModelTree, ModuleFact, TensorFact

__all__ = [
    "Architecture",
    "DeviceFacts",
    "Facts",
    "HostFacts",
    "ModelTree",
    "ModuleFact",
    "TensorFact",
    "TrainingFacts",
]
