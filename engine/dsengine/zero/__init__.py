"""ZeRO's own names: ``Init``, ``GatheredParameters``, ``register_external_parameter`` ..."""

from dsengine.offload.parking import OffloadDeviceEnum, OffloadStateTypeEnum
from dsengine.zero.external import register_external_parameter, unregister_external_parameter
from dsengine.zero.gathered import GatheredParameters
from dsengine.zero.init import Init
from dsengine.zero.status import ZeroParamStatus

__all__ = [
    "GatheredParameters",
    "Init",
    "OffloadDeviceEnum",
    "OffloadStateTypeEnum",
    "ZeroParamStatus",
    "register_external_parameter",
    "unregister_external_parameter",
]
