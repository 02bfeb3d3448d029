"""Coverage of batch, gradient averaging and precision keys."""

from dsconfig.features.table import DEGREES
from dsconfig.planner.coverage.rules import (
    BF16,
    OFF,
    OPTIMIZER_ON_NVME,
    SHARDED,
    Condition,
    Rule,
    equals,
    honoured,
    inert,
    refused,
    stages,
)

_BATCH = {
    "train_batch_size": honoured("micro batch x accumulation x data-parallel ranks"),
    "train_micro_batch_size_per_gpu": honoured("batch size of the data loader"),
    "gradient_accumulation_steps": honoured(
        "gradients accumulate over this many micro batches; the loss is divided by it"
    ),
    "managed_gradient_accumulation": honoured("false: each step() ends the accumulation"),
    "gradient_clipping": honoured("clipping by the global norm over all shards before the step"),
    "prescale_gradients": honoured("gradients are divided by the number of ranks before reduction"),
    "gradient_predivide_factor": honoured(
        "gradients are divided by it before reduction and by ranks/factor after"
    ),
    "gradient_allreduce_op": honoured("mean divides by the number of ranks, sum does not"),
    "communication_data_type": honoured("dtype of gradient reduction"),
    "disable_allgather": inert(
        "not read by DeepSpeed any more; parameters are always gathered, with the same result"
    ),
    "allgather_size": inert("read only with the old boolean form of zero_optimization"),
    "dataloader_drop_last": honoured("the data loader drops the incomplete last batch"),
    "vocabulary_size": inert("used only for a warning in DeepSpeed"),
    "data_parallel_size": inert("the mesh follows from the process group"),
    "sequence_parallel_size": inert("no sequence parallelism", equals(1))
    + honoured(DEGREES["sequence"].reason),
    "seq_parallel_communication_data_type": honoured(
        "dtype of gradient reduction where samples are divided along the sequence, in place of "
        "communication_data_type"
    ),
    "disable_python_gc": honoured("the garbage collector runs only between steps"),
    "zero_allow_untested_optimizer": inert(
        "any torch optimizer works: sharding is independent of the optimizer"
    ),
    "zero_force_ds_cpu_optimizer": inert("optimizer offload works with any torch optimizer"),
    "sparse_gradients": inert("off", OFF)
    + honoured("sparse embedding gradients are reduced as indices and values", stages(0))
    + inert("sharded gradients are dense"),
}

SWITCHED = ("fp16", "bf16", "bfloat16", "torch_autocast")


_IS_MODEL_DTYPE = Condition(
    "if equal to the training precision",
    lambda value, config: config.numerics.grad_accum_dtype is config.numerics.precision,
)

_MASTER = (
    inert("master weights stay fp32", OFF)
    + refused("states on NVMe are fp32; remove the key", OPTIMIZER_ON_NVME)
    + honoured("the optimizer updates 16-bit weights, and gradients are 16-bit", SHARDED)
    + refused("16-bit master weights require sharding; set zero_optimization.stage 1, 2 or 3")
)
_NAMED: dict[str, Rule] = {
    "fp16.enabled": honoured("16-bit parameters with sharded fp32 master weights"),
    "fp16.auto_cast": inert("inputs keep their dtype", OFF)
    + honoured("floating-point inputs of the model are cast to fp16"),
    "fp16.loss_scale": honoured("0: DeepSpeed's dynamic loss scaling; else a static scale"),
    "fp16.initial_scale_power": honoured("initial dynamic loss scale, as a power of 2"),
    "fp16.loss_scale_window": honoured(
        "steps without overflow before the dynamic loss scale doubles"
    ),
    "fp16.hysteresis": honoured("overflows before the dynamic loss scale is halved"),
    "fp16.consecutive_hysteresis": honoured("a step without overflow resets the hysteresis"),
    "fp16.min_loss_scale": honoured("an overflow at this loss scale stops training"),
    "fp16.fp16_master_weights_and_grads": _MASTER,
    "bf16.enabled": honoured("16-bit parameters with sharded fp32 master weights"),
    "bf16.immediate_grad_update": inert(
        "gradients are always accumulated to fp32 in the backward hook"
    ),
    "bf16.check_grad_overflow": honoured("a non-finite gradient norm skips the step", BF16)
    + inert("this run does not use bf16"),
    "bf16.bf16_master_weights_and_grads": _MASTER,
    "bf16.bf16_optimizer_states": inert("states stay fp32", OFF)
    + refused("states on NVMe are fp32; remove the key", OPTIMIZER_ON_NVME)
    + honoured("states are bf16, as the master weights", SHARDED)
    + refused("bf16 states require sharding; set zero_optimization.stage 1, 2 or 3"),
    "torch_autocast.enabled": honoured("forward runs under torch.autocast"),
    "torch_autocast.dtype": honoured(
        "dtype of torch.autocast; float16 scales the loss like torch.amp.GradScaler"
    ),
    "torch_autocast.lower_precision_safe_modules": inert(
        "torch.autocast uses its own list of operations"
    ),
    "data_types.grad_accum_dtype": inert("same as the dtype of the model", _IS_MODEL_DTYPE)
    + honoured("dtype of gradient accumulation"),
    "data_types.param_dtype": honoured("must equal the training precision; else an error"),
    "data_types.buffer_dtype": honoured("floating-point buffers are cast to it"),
    "data_types.keep_in_fp32_modules": honoured("buffers that match a pattern are fp32"),
}
_OLD_NAME = {f"bfloat16{name[4:]}": rule for name, rule in _NAMED.items() if name[:5] == "bf16."}
"""Old name of the bf16 block, read if bf16 is absent."""
RULES: dict[str, Rule] = {**_BATCH, **_NAMED, **_OLD_NAME}
