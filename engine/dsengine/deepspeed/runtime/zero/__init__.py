"""ZeRO's public names: ``Init``, ``GatheredParameters``, ``register_external_parameter`` ..."""

from dsengine.deepspeed.runtime.zero import config, offload_config, partition_parameters, tiling
from dsengine.deepspeed.runtime.zero.generation import unwrap_model_for_generation
from dsengine.deepspeed.runtime.zero.tiling import TiledLinear
from dsengine.sharding.zero.external import (
    register_external_parameter,
    unregister_external_parameter,
)
from dsengine.sharding.zero.gathered import GatheredParameters
from dsengine.sharding.zero.init import Init
from dsengine.sharding.zero.status import ZeroParamStatus
from dsengine.tiers.offloaded_states import OffloadDeviceEnum, OffloadStateTypeEnum

__all__ = [
    "GatheredParameters",
    "Init",
    "OffloadDeviceEnum",
    "OffloadStateTypeEnum",
    "TiledLinear",
    "ZeroParamStatus",
    "config",
    "offload_config",
    "partition_parameters",
    "register_external_parameter",
    "tiling",
    "unregister_external_parameter",
    "unwrap_model_for_generation",
]
