"""ZeRO training on PyTorch's distributed stack, from a ds_config.

Provides the names of ``deepspeed`` that training scripts use:

    engine, optimizer, loader, scheduler = dsengine.initialize(model=model, config="ds.json")

Names are imported on first use, so that ``import dsengine`` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import dsconfig
from dsengine.deepspeed.importing import install
from dsengine.deepspeed.names import missing
from dsengine.deepspeed.paths import module_of
from dsengine.loading import gc_disabled

if TYPE_CHECKING:
    from dsengine.checkpoints import CheckpointError
    from dsengine.communication.peers import RankFailedError
    from dsengine.communication.start import init_distributed
    from dsengine.deepspeed import (
        accelerator,
        comm,
        compression,
        moe,
        ops,
        profiling,
        runtime,
        utils,
    )
    from dsengine.deepspeed.accelerator import get_accelerator
    from dsengine.deepspeed.arguments import add_config_arguments
    from dsengine.deepspeed.runtime import zero
    from dsengine.deepspeed.runtime.activation_checkpointing import checkpointing
    from dsengine.deepspeed.runtime.base_optimizer import DeepSpeedOptimizer
    from dsengine.deepspeed.runtime.config import DeepSpeedConfig
    from dsengine.deepspeed.tensor_parallel import tp_model_init
    from dsengine.deepspeed.utils.init_on_device import OnDevice
    from dsengine.deepspeed.utils.logging import log_dist, logger
    from dsengine.loop.data import RepeatingLoader
    from dsengine.loop.engine import Engine
    from dsengine.loop.engine import Engine as DeepSpeedEngine
    from dsengine.loop.initialization import initialize
    from dsengine.loop.planning import DeepSpeedConfigError
    from dsengine.observation.measurement import measure, print_measurement
    from dsengine.observation.progress import Progress
    from dsengine.optimizers import schedules
    from dsengine.parameters.model_tree import describe
    from dsengine.simulation.dry_run import simulate

DEEPSPEED = "0.19.8"
"""The DeepSpeed release whose interface this package implements."""
__version__ = f"{DEEPSPEED}+dsengine.{dsconfig.__version__}"
"""DeepSpeed's release, for scripts that compare it, and our own after the plus sign."""
__version_major__, __version_minor__, __version_patch__ = map(int, DEEPSPEED.split("."))
__git_hash__ = __git_branch__ = None

_MODULES = {
    "CheckpointError": "checkpoints",
    "DeepSpeedConfig": "deepspeed.runtime.config",
    "DeepSpeedConfigError": "loop.planning",
    "DeepSpeedOptimizer": "deepspeed.runtime.base_optimizer",
    "Engine": "loop.engine",
    "Progress": "observation.progress",
    "OnDevice": "deepspeed.utils.init_on_device",
    "RankFailedError": "communication.peers",
    "RepeatingLoader": "loop.data",
    "add_config_arguments": "deepspeed.arguments",
    "describe": "parameters.model_tree",
    "get_accelerator": "deepspeed.accelerator",
    "init_distributed": "communication.start",
    "initialize": "loop.initialization",
    "log_dist": "deepspeed.utils.logging",
    "logger": "deepspeed.utils.logging",
    "measure": "observation.measurement",
    "print_measurement": "observation.measurement",
    "simulate": "simulation.dry_run",
    "tp_model_init": "deepspeed.tensor_parallel",
    "version": "deepspeed.git_version_info",
}
"""By name, the submodule of ``dsengine`` that defines it."""
_ALIASES = {"DeepSpeedEngine": "Engine"}


def __getattr__(name: str) -> Any:
    target = _ALIASES.get(name, name)
    if target in _MODULES:
        with gc_disabled():
            value = getattr(import_module(f"dsengine.{_MODULES[target]}"), target)
    elif name in __all__ and module_of(name):
        value = import_module(f"dsengine.{name}")
    else:
        return missing("dsengine", "")(name)
    globals()[name] = value
    return value


install()

__all__ = [
    "CheckpointError",
    "DeepSpeedConfig",
    "DeepSpeedConfigError",
    "DeepSpeedEngine",
    "DeepSpeedOptimizer",
    "Engine",
    "OnDevice",
    "Progress",
    "RankFailedError",
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
    "moe",
    "ops",
    "print_measurement",
    "profiling",
    "runtime",
    "schedules",
    "simulate",
    "tp_model_init",
    "utils",
    "zero",
]
