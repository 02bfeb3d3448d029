"""What scripts import from ``deepspeed.utils``."""

from dsengine.deepspeed.utils import groups, zero_to_fp32
from dsengine.deepspeed.utils.logging import log_dist, logger, print_dist, warning_once
from dsengine.deepspeed.utils.module_utils import recursive_getattr, recursive_setattr
from dsengine.deepspeed.utils.tensor_fragment import (
    safe_get_full_fp32_param,
    safe_get_full_grad,
    safe_get_full_optimizer_state,
)
from dsengine.deepspeed.utils.z3_leaf_module import set_z3_leaf_modules
from dsengine.loop.data import RepeatingLoader

__all__ = [
    "RepeatingLoader",
    "groups",
    "log_dist",
    "logger",
    "print_dist",
    "recursive_getattr",
    "recursive_setattr",
    "safe_get_full_fp32_param",
    "safe_get_full_grad",
    "safe_get_full_optimizer_state",
    "set_z3_leaf_modules",
    "warning_once",
    "zero_to_fp32",
]
