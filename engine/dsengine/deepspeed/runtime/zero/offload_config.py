"""Which states can leave the device, and where to."""

from dsengine.tiers.offloaded_states import OffloadDeviceEnum, OffloadStateTypeEnum

__all__ = ["OffloadDeviceEnum", "OffloadStateTypeEnum"]
