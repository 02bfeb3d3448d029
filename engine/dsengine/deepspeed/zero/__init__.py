"""ZeRO's own names: ``Init``, ``GatheredParameters``, ``register_external_parameter`` ..."""

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
    "ZeroParamStatus",
    "register_external_parameter",
    "unregister_external_parameter",
]
