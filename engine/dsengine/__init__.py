"""ZeRO training on PyTorch's distributed stack, from a ds_config.

Has the names that training scripts use of ``deepspeed``:

    engine, optimizer, loader, scheduler = dsengine.initialize(model=model, config="ds.json")

Names are loaded on first use, so that ``import dsengine`` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import dsconfig
from dsengine.refusals import refusal, refuse_imports

if TYPE_CHECKING:
    from dsengine import (
        accelerator,
        comm,
        compression,
        ops,
        profiling,
        runtime,
        schedules,
        utils,
        zero,
    )
    from dsengine import activation_checkpointing as checkpointing
    from dsengine.accelerator import get_accelerator
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
    from dsengine.utils.logging import log_dist, logger

DEEPSPEED = "0.19.8"
"""The release whose interface this is."""
__version__ = f"{DEEPSPEED}+dsengine.{dsconfig.__version__}"
"""What a script that compares releases has to see, and after the plus sign our own."""

_ATTRIBUTES = {
    "DeepSpeedEngine": ("dsengine.engine", "Engine"),
    "Progress": ("dsengine.progress", "Progress"),
    "RepeatingLoader": ("dsengine.data", "RepeatingLoader"),
    "Engine": ("dsengine.engine", "Engine"),
    "add_config_arguments": ("dsengine.arguments", "add_config_arguments"),
    "describe": ("dsengine.model_tree", "describe"),
    "get_accelerator": ("dsengine.accelerator", "get_accelerator"),
    "init_distributed": ("dsengine.comm", "init_distributed"),
    "log_dist": ("dsengine.utils.logging", "log_dist"),
    "logger": ("dsengine.utils.logging", "logger"),
    "measure": ("dsengine.measurement", "measure"),
    "print_measurement": ("dsengine.measurement", "print_measurement"),
    "initialize": ("dsengine.initialization", "initialize"),
    "simulate": ("dsengine.simulation", "simulate"),
}
_MODULES = {
    "accelerator": "dsengine.accelerator",
    "checkpointing": "dsengine.activation_checkpointing",
    "comm": "dsengine.comm",
    "compression": "dsengine.compression",
    "ops": "dsengine.ops",
    "profiling": "dsengine.profiling",
    "runtime": "dsengine.runtime",
    "schedules": "dsengine.schedules",
    "utils": "dsengine.utils",
    "zero": "dsengine.zero",
}


def __getattr__(name: str) -> Any:
    if name in _ATTRIBUTES:
        module, attribute = _ATTRIBUTES[name]
        value = getattr(import_module(module), attribute)
    elif name in _MODULES:
        value = import_module(_MODULES[name])
    else:
        raise AttributeError(refusal(name) or f"module 'dsengine' has no attribute {name!r}")
    globals()[name] = value
    return value


refuse_imports()

__all__ = [
    "DeepSpeedEngine",
    "Engine",
    "Progress",
    "RepeatingLoader",
    "accelerator",
    "add_config_arguments",
    "checkpointing",
    "comm",
    "compression",
    "describe",
    "get_accelerator",
    "init_distributed",
    "initialize",
    "log_dist",
    "logger",
    "measure",
    "ops",
    "print_measurement",
    "profiling",
    "runtime",
    "schedules",
    "simulate",
    "utils",
    "zero",
]
