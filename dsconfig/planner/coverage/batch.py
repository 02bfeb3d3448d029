"""Batch, accumulation, and how gradients are averaged."""

from dsconfig.planner.coverage.rules import (
    OFF,
    equals,
    honoured,
    inert,
    off_or_refused,
    refused,
    stages,
)

RULES = {
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
    "disable_allgather": inert("read by nobody; DeepSpeed dropped its use", OFF)
    + refused("updated parameters must be gathered; remove the key"),
    "allgather_size": inert("only the old boolean form of zero_optimization reads it"),
    "dataloader_drop_last": honoured("the data loader drops the incomplete last batch"),
    "vocabulary_size": inert("DeepSpeed only warns about its alignment; nothing reads it"),
    "data_parallel_size": inert("the mesh comes from the process group"),
    "sequence_parallel_size": inert("no sequence parallelism", equals(1))
    + refused("sequence parallelism is not built; remove the key or set it to 1"),
    "seq_parallel_communication_data_type": inert("no sequence parallelism"),
    "use_data_before_expert_parallelism": off_or_refused("expert parallelism", "remove the key"),
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
