"""The batch, how gradients are averaged, and the dtypes of it all."""

from dsconfig.planner.coverage.rules import (
    BF16,
    OFF,
    Condition,
    Rule,
    equals,
    honoured,
    inert,
    off_or_refused,
    refused,
    stages,
)

_BATCH = {
    "train_batch_size": honoured("micro batch x accumulation x data-parallel ranks"),
    "train_micro_batch_size_per_gpu": honoured("the batch of the data loader"),
    "gradient_accumulation_steps": honoured(
        "gradients are summed over the window; the loss is divided by it"
    ),
    "managed_gradient_accumulation": honoured("false: every step() ends the accumulation window"),
    "gradient_clipping": honoured("clipping by global norm over all shards before the step"),
    "prescale_gradients": honoured("gradients are divided by the ranks before reduction"),
    "gradient_predivide_factor": honoured(
        "gradients are divided by it before reduction, by ranks/factor after"
    ),
    "gradient_allreduce_op": honoured("mean divides by the ranks, sum does not"),
    "communication_data_type": honoured("the dtype in which gradients are reduced"),
    "disable_allgather": off_or_refused(
        "updated parameters must be gathered; remove the key",
        "read by nobody; DeepSpeed dropped its use",
    ),
    "allgather_size": inert("only the old boolean form of zero_optimization reads it"),
    "dataloader_drop_last": honoured("the data loader drops the incomplete last batch"),
    "vocabulary_size": inert("DeepSpeed only warns about its alignment; nothing reads it"),
    "data_parallel_size": inert("the mesh comes from the process group"),
    "sequence_parallel_size": inert("no sequence parallelism", equals(1))
    + refused("sequence parallelism is not built; remove the key or set it to 1"),
    "seq_parallel_communication_data_type": inert("no sequence parallelism"),
    "use_data_before_expert_parallelism": off_or_refused(
        "expert parallelism is not built; remove the key", "expert parallelism is off"
    ),
    "disable_python_gc": honoured("the garbage collector runs only between steps"),
    "zero_allow_untested_optimizer": inert(
        "every torch optimizer works here: sharding is independent of the optimizer"
    ),
    "zero_force_ds_cpu_optimizer": inert(
        "an offloaded optimizer steps on the host with any torch optimizer"
    ),
    "sparse_gradients": inert("off", OFF)
    + honoured("sparse embedding gradients are reduced as indices and values", stages(0))
    + inert("sharded gradients are dense"),
}

SWITCHED = ("fp16", "bf16", "bfloat16", "torch_autocast")


_IS_MODEL_DTYPE = Condition(
    "when it names the precision in force",
    lambda value, config: config.numerics.grad_accum_dtype is config.numerics.precision,
)

_MASTER = off_or_refused("a 16-bit master is not built; remove the key", "the master stays fp32")
_NAMED: dict[str, Rule] = {
    "fp16.enabled": honoured("16-bit parameters over an fp32 sharded master"),
    "fp16.auto_cast": inert("inputs keep their dtype", OFF)
    + honoured("floating-point inputs of the model are cast to fp16"),
    "fp16.loss_scale": honoured("0: DeepSpeed's dynamic scale; else a fixed scale"),
    "fp16.initial_scale_power": honoured("the first dynamic scale is 2 to this power"),
    "fp16.loss_scale_window": honoured("good steps before the dynamic scale doubles"),
    "fp16.hysteresis": honoured("overflows before the dynamic scale is halved"),
    "fp16.consecutive_hysteresis": honoured("a good step refills the hysteresis"),
    "fp16.min_loss_scale": honoured("an overflow at this scale stops the run"),
    "fp16.fp16_master_weights_and_grads": _MASTER,
    "bf16.enabled": honoured("16-bit parameters over an fp32 sharded master"),
    "bf16.immediate_grad_update": inert(
        "gradients reach the fp32 accumulator in the backward hook anyway"
    ),
    "bf16.check_grad_overflow": honoured("a non-finite gradient norm skips the step", BF16)
    + inert("bf16 is not the precision of this run"),
    "bf16.bf16_master_weights_and_grads": _MASTER,
    "bf16.bf16_optimizer_states": off_or_refused(
        "16-bit optimizer states are not built; remove the key", "states stay fp32"
    ),
    "torch_autocast.enabled": honoured("forward runs under torch.autocast"),
    "torch_autocast.dtype": honoured("the dtype of torch.autocast"),
    "torch_autocast.lower_precision_safe_modules": inert(
        "torch.autocast's own list of operations decides"
    ),
    "data_types.grad_accum_dtype": inert("it is the dtype of the model", _IS_MODEL_DTYPE)
    + honoured("the dtype in which a window's gradients are summed"),
    "data_types.param_dtype": honoured("must name the precision in force; a conflict is refused"),
    "data_types.buffer_dtype": honoured("floating-point buffers are cast to it"),
    "data_types.keep_in_fp32_modules": inert("no module is exempt", equals("auto"))
    + inert("no module is exempt", equals([]))
    + refused("mixed parameter dtypes in one model are not built; remove the key"),
}
_OLD_NAME = {f"bfloat16{name[4:]}": rule for name, rule in _NAMED.items() if name[:5] == "bf16."}
"""The bf16 block's old name, read where the new one is absent."""
RULES: dict[str, Rule] = {**_BATCH, **_NAMED, **_OLD_NAME}
