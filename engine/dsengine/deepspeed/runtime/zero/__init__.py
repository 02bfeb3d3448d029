"""ZeRO's own names; the same as ``dsengine.zero``."""

from dsengine.deepspeed.runtime.zero import offload_config, partition_parameters
from dsengine.sharding.zero.external import (
    register_external_parameter,
    unregister_external_parameter,
)
from dsengine.sharding.zero.gathered import GatheredParameters
from dsengine.sharding.zero.init import Init

__all__ = [
    "GatheredParameters",
    "Init",
    "offload_config",
    "partition_parameters",
    "register_external_parameter",
    "unregister_external_parameter",
]
