"""ZeRO training on PyTorch's distributed stack, from a ds_config.

Provides the names of ``deepspeed`` that training scripts use:

    engine, optimizer, loader, scheduler = dsengine.initialize(model=model, config="ds.json")

Names are imported on first use, so that ``import dsengine`` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dsengine.deepspeed.importing import install
from dsengine.deepspeed.names import missing
from dsengine.deepspeed.table import module_of
from dsengine.loading import gc_disabled
from dsengine.release import DEEPSPEED, VERSION

if TYPE_CHECKING:
    from torch.optim import Optimizer as DeepSpeedOptimizer

    from dsengine.checkpoints import CheckpointError
    from dsengine.communication.peers import RankFailedError
    from dsengine.communication.start import init_distributed
    from dsengine.deepspeed.accelerators import get_accelerator
    from dsengine.deepspeed.arguments import add_config_arguments
    from dsengine.deepspeed.config import DeepSpeedConfig
    from dsengine.deepspeed.observing import log_dist, logger
    from dsengine.deepspeed.parallel import tp_model_init
    from dsengine.deepspeed.utilities import OnDevice
    from dsengine.loop import activation_checkpointing as checkpointing
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

    accelerator: Any
    comm: Any
    compression: Any
    moe: Any
    ops: Any
    pipe: Any
    profiling: Any
    runtime: Any
    utils: Any
    zero: Any

__version__ = VERSION
__version_major__, __version_minor__, __version_patch__ = map(int, DEEPSPEED.split("."))
__git_hash__ = __git_branch__ = None

_MODULES = {
    "CheckpointError": "checkpoints",
    "DeepSpeedConfig": "deepspeed.config",
    "DeepSpeedConfigError": "loop.planning",
    "DeepSpeedOptimizer": "deepspeed.runtime.base_optimizer",
    "Engine": "loop.engine",
    "Progress": "observation.progress",
    "OnDevice": "deepspeed.utilities",
    "RankFailedError": "communication.peers",
    "RepeatingLoader": "loop.data",
    "add_config_arguments": "deepspeed.arguments",
    "describe": "parameters.model_tree",
    "get_accelerator": "deepspeed.accelerators",
    "init_distributed": "communication.start",
    "initialize": "loop.initialization",
    "log_dist": "deepspeed.observing",
    "logger": "deepspeed.observing",
    "measure": "observation.measurement",
    "print_measurement": "observation.measurement",
    "simulate": "simulation.dry_run",
    "tp_model_init": "deepspeed.parallel",
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
    "pipe",
    "print_measurement",
    "profiling",
    "runtime",
    "schedules",
    "simulate",
    "tp_model_init",
    "utils",
    "zero",
]
