"""What is known about model, hardware, host and training run, each with its origin.

Names are loaded on first use: most configs are judged without a single fact.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsconfig.facts.facts import Facts
    from dsconfig.facts.gathering import gather
    from dsconfig.facts.given import FactError
    from dsconfig.facts.hf_config import architecture as architecture_of
    from dsconfig.facts.machine import DeviceFacts, HostFacts
    from dsconfig.facts.model import Architecture, ModelTree, ModuleFact, TensorFact
    from dsconfig.facts.training import TrainingFacts

_HOMES = {
    "FactError": ("given", "FactError"),
    "DeviceFacts": ("machine", "DeviceFacts"),
    "Facts": ("facts", "Facts"),
    "HostFacts": ("machine", "HostFacts"),
    "TrainingFacts": ("training", "TrainingFacts"),
    "architecture_of": ("hf_config", "architecture"),
    "gather": ("gathering", "gather"),
    "Architecture": ("model", "Architecture"),
    "ModelTree": ("model", "ModelTree"),
    "ModuleFact": ("model", "ModuleFact"),
    "TensorFact": ("model", "TensorFact"),
}
"""The module of each name, and what it is called there."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, inner = _HOMES[name]
    value = getattr(import_module(f"{__name__}.{module}"), inner)
    globals()[name] = value
    return value


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
