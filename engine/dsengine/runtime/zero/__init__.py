"""ZeRO's own names; the same as ``dsengine.zero``."""

from dsengine.runtime.zero import offload_config, partition_parameters
from dsengine.zero import (
    GatheredParameters,
    Init,
    register_external_parameter,
    unregister_external_parameter,
)

__all__ = [
    "GatheredParameters",
    "Init",
    "offload_config",
    "partition_parameters",
    "register_external_parameter",
    "unregister_external_parameter",
]
