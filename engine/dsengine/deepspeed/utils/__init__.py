"""Names that scripts import from ``deepspeed.utils``."""

from torch.distributed import is_initialized

from dsengine.deepspeed.utils import groups, timer, zero_to_fp32
from dsengine.deepspeed.utils.init_on_device import OnDevice
from dsengine.deepspeed.utils.logging import (
    log_dist,
    logger,
    print_dist,
    set_log_level_from_string,
    warning_once,
)
from dsengine.deepspeed.utils.module_utils import recursive_getattr, recursive_setattr
from dsengine.deepspeed.utils.tensor_fragment import (
    safe_get_full_fp32_param,
    safe_get_full_grad,
    safe_get_full_optimizer_state,
    safe_get_local_fp32_param,
    safe_get_local_grad,
    safe_get_local_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_grad,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_grad,
    safe_set_local_optimizer_state,
    safe_update_full_grad_vectorized,
)
from dsengine.deepspeed.utils.z3_leaf_module import (
    get_z3_leaf_modules,
    set_z3_leaf_module,
    set_z3_leaf_modules,
    set_z3_leaf_modules_by_name,
    set_z3_leaf_modules_by_suffix,
    unset_z3_leaf_modules,
    z3_leaf_module,
)
from dsengine.loop.data import RepeatingLoader

__all__ = [
    "OnDevice",
    "RepeatingLoader",
    "get_z3_leaf_modules",
    "groups",
    "is_initialized",
    "log_dist",
    "logger",
    "print_dist",
    "recursive_getattr",
    "recursive_setattr",
    "safe_get_full_fp32_param",
    "safe_get_full_grad",
    "safe_get_full_optimizer_state",
    "safe_get_local_fp32_param",
    "safe_get_local_grad",
    "safe_get_local_optimizer_state",
    "safe_set_full_fp32_param",
    "safe_set_full_grad",
    "safe_set_full_optimizer_state",
    "safe_set_local_fp32_param",
    "safe_set_local_grad",
    "safe_set_local_optimizer_state",
    "safe_update_full_grad_vectorized",
    "set_log_level_from_string",
    "set_z3_leaf_module",
    "set_z3_leaf_modules",
    "set_z3_leaf_modules_by_name",
    "set_z3_leaf_modules_by_suffix",
    "timer",
    "unset_z3_leaf_modules",
    "warning_once",
    "z3_leaf_module",
    "zero_to_fp32",
]
