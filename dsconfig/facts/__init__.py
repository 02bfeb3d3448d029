"""What is known about model, hardware, host and training run, each with its origin."""

from dsconfig.facts.errors import FactError
from dsconfig.facts.facts import DeviceFacts, Facts, HostFacts, TrainingFacts
from dsconfig.facts.from_hf_config import architecture as architecture_of
from dsconfig.facts.gathering import gather
from dsconfig.facts.model import Architecture, ModelTree, ModuleFact, TensorFact

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
