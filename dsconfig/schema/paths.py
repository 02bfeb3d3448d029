"""Dotted paths used by several packages."""

ZERO = "zero_optimization"
STAGE = f"{ZERO}.stage"
OFFLOAD_OPTIMIZER, OFFLOAD_PARAM = f"{ZERO}.offload_optimizer", f"{ZERO}.offload_param"
OPTIMIZER_DEVICE, PARAM_DEVICE = f"{OFFLOAD_OPTIMIZER}.device", f"{OFFLOAD_PARAM}.device"
OPTIMIZER_PARAMS, SCHEDULER_PARAMS = "optimizer.params", "scheduler.params"
SEQUENCE_PARALLEL = "sequence_parallel_size"
TENSOR_PARALLEL = "tensor_parallel"
DEGREES = {
    "sequence": SEQUENCE_PARALLEL,
    "tensor": f"{TENSOR_PARALLEL}.autotp_size",
    "expert": "expert_parallel.autoep_size",
}
"""The key of each parallel degree."""
