"""Modules that stage 3 gathers as one by default, with DeepSpeed's names."""

from dsengine.deepspeed.runtime.zero.config import DeepSpeedZeroLeafModuleConfig

_default = DeepSpeedZeroLeafModuleConfig()
DEFAULT_LEAF_MODULE_CLASSES = list(_default.classes)
DEFAULT_LEAF_MODULE_NAMES = list(_default.names)
DEFAULT_LEAF_MODULE_NAME_SUFFIXES = list(_default.name_suffixes)

__all__ = [
    "DEFAULT_LEAF_MODULE_CLASSES",
    "DEFAULT_LEAF_MODULE_NAMES",
    "DEFAULT_LEAF_MODULE_NAME_SUFFIXES",
    "DeepSpeedZeroLeafModuleConfig",
]
