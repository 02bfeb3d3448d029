"""Submodules by name; newer scripts import these functions from ``utils``."""

from dsengine.deepspeed.utils.module_utils import recursive_getattr, recursive_setattr

__all__ = ["recursive_getattr", "recursive_setattr"]
