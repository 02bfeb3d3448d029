"""What is printed, timed, profiled, logged and checkpointed."""

from dsconfig.planner.coverage.rules import Condition, honoured, inert, off_or_refused, refused

SWITCHED = ("flops_profiler", "tensorboard", "wandb", "comet", "csv_monitor", "comms_logger")

RULES = {
    "steps_per_print": honoured("rank 0 prints a line every so many steps"),
    "wall_clock_breakdown": honoured("forward, backward and step are timed and printed"),
    "memory_breakdown": honoured("live bytes are printed by phase"),
    "dump_state": honoured("the plan is printed when the engine is built"),
    "log_level": honoured("the level of the dsengine logger"),
    "flops_profiler.enabled": honoured("torch's FLOP counter at profile_step"),
    "flops_profiler.profile_step": honoured("the step that is profiled"),
    "flops_profiler.module_depth": honoured("depth of the printed table"),
    "flops_profiler.top_modules": honoured("modules printed per depth"),
    "flops_profiler.detailed": honoured("prints every module instead of the summary"),
    "flops_profiler.output_file": honoured("where the profile is written"),
    "flops_profiler.recompute_fwd_factor": honoured("counts recomputed forward passes"),
    "comms_logger.enabled": honoured("collectives are counted by size"),
    "comms_logger.prof_all": honoured("every collective is counted"),
    "comms_logger.prof_ops": honoured("only these collectives are counted"),
    "comms_logger.verbose": honoured("each collective is printed"),
    "comms_logger.debug": inert("the caller's name is not recorded"),
    "timers.throughput.enabled": honoured("samples per second in the printed line"),
    "timers.throughput.synchronized": honoured("the device is synchronised before timing"),
    "activation_checkpointing.partition_activations": inert(
        "checkpoints are split over tensor-parallel ranks; there is one"
    ),
    "activation_checkpointing.cpu_checkpointing": honoured(
        "checkpoints of the repeated blocks rest in host memory"
    ),
    "activation_checkpointing.contiguous_memory_optimization": inert(
        "needs partitioned checkpoints"
    ),
    "activation_checkpointing.number_checkpoints": inert("every block is checkpointed"),
    "activation_checkpointing.synchronize_checkpoint_boundary": honoured(
        "the device is synchronised at each checkpoint"
    ),
    "activation_checkpointing.profile": inert("use flops_profiler or torch.profiler"),
    "checkpoint.tag_validation": honoured("tags are compared across ranks before saving"),
    "checkpoint.load_universal": inert("every checkpoint loads at any number of ranks"),
    "checkpoint.use_node_local_storage": refused(
        "a checkpoint is one directory, which loads at any world size only where all ranks see all "
        "of it; save to storage that the nodes share and remove the key",
        Condition(
            "when it is on and there are several nodes",
            lambda value, config: config.checkpointing.node_local_storage,
        ),
    )
    + inert("all ranks of one node see its directories"),
    "checkpoint.parallel_write.pipeline_stage": inert("there is one pipeline stage"),
    "checkpoint.checkpoint_serialization": inert("safetensors and torch's own format"),
    "datastates_ckpt": off_or_refused(
        "DataStates is not built; use the engine's async save", "DataStates is off"
    ),
} | {
    f"{monitor}.{key}": honoured(f"{monitor} receives lr, loss scale and timings on rank 0")
    for monitor, keys in {
        "tensorboard": ("enabled", "output_path", "job_name"),
        "csv_monitor": ("enabled", "output_path", "job_name"),
        "wandb": ("enabled", "group", "team", "project"),
        "comet": (
            "enabled",
            "samples_log_interval",
            "project",
            "workspace",
            "api_key",
            "experiment_name",
            "experiment_key",
            "online",
            "mode",
        ),
    }.items()
    for key in keys
}
