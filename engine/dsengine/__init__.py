"""ZeRO training on PyTorch's distributed stack, from a ds_config.

Has the names that training scripts use of ``deepspeed``:

    engine, optimizer, loader, scheduler = dsengine.initialize(model=model, config="ds.json")

Names are loaded on first use, so that ``import dsengine`` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsengine import activation_checkpointing as checkpointing
    from dsengine import comm, schedules, zero
    from dsengine.arguments import add_config_arguments
    from dsengine.comm import init_distributed
    from dsengine.data import RepeatingLoader
    from dsengine.engine import Engine
    from dsengine.engine import Engine as DeepSpeedEngine
    from dsengine.initialization import initialize
    from dsengine.measurement import measure, print_measurement
    from dsengine.model_tree import describe
    from dsengine.progress import Progress
    from dsengine.simulation import simulate

_ATTRIBUTES = {
    "DeepSpeedEngine": ("dsengine.engine", "Engine"),
    "Progress": ("dsengine.progress", "Progress"),
    "RepeatingLoader": ("dsengine.data", "RepeatingLoader"),
    "Engine": ("dsengine.engine", "Engine"),
    "add_config_arguments": ("dsengine.arguments", "add_config_arguments"),
    "describe": ("dsengine.model_tree", "describe"),
    "init_distributed": ("dsengine.comm", "init_distributed"),
    "measure": ("dsengine.measurement", "measure"),
    "print_measurement": ("dsengine.measurement", "print_measurement"),
    "initialize": ("dsengine.initialization", "initialize"),
    "simulate": ("dsengine.simulation", "simulate"),
}
_MODULES = {
    "checkpointing": "dsengine.activation_checkpointing",
    "comm": "dsengine.comm",
    "schedules": "dsengine.schedules",
    "zero": "dsengine.zero",
}


def __getattr__(name: str) -> Any:
    if name in _ATTRIBUTES:
        module, attribute = _ATTRIBUTES[name]
        value = getattr(import_module(module), attribute)
    elif name in _MODULES:
        value = import_module(_MODULES[name])
    else:
        raise AttributeError(f"module 'dsengine' has no attribute {name!r}")
    globals()[name] = value
    return value


__all__ = [
    "DeepSpeedEngine",
    "Engine",
    "Progress",
    "RepeatingLoader",
    "add_config_arguments",
    "checkpointing",
    "comm",
    "describe",
    "init_distributed",
    "initialize",
    "measure",
    "print_measurement",
    "schedules",
    "simulate",
    "zero",
]
