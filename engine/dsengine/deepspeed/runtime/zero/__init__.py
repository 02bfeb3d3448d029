"""ZeRO's own names; the same as ``dsengine.zero``."""

from dsengine.deepspeed.runtime.zero import offload_config, partition_parameters
from dsengine.deepspeed.runtime.zero.generation import unwrap_model_for_generation
from dsengine.deepspeed.runtime.zero.tiling import TiledLinear
from dsengine.sharding.zero.external import (
    register_external_parameter,
    unregister_external_parameter,
)
from dsengine.sharding.zero.gathered import GatheredParameters
from dsengine.sharding.zero.init import Init
from dsengine.sharding.zero.status import ZeroParamStatus

__all__ = [
    "GatheredParameters",
    "Init",
    "TiledLinear",
    "ZeroParamStatus",
    "offload_config",
    "partition_parameters",
    "register_external_parameter",
    "unregister_external_parameter",
    "unwrap_model_for_generation",
]
