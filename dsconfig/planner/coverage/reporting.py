"""Coverage of reporting, timing, profiling and checkpointing."""

from dsconfig.features.table import FEATURES
from dsconfig.planner.coverage.rules import (
    OFF,
    OPTIMIZER_ON_NVME,
    Condition,
    honoured,
    inert,
    off_or_refused,
    refused,
)

SWITCHED = ("flops_profiler", "tensorboard", "wandb", "comet", "csv_monitor", "comms_logger")
MOCK = Condition("for MOCK", lambda value, config: str(value).upper() == "MOCK")

RULES = {
    "steps_per_print": honoured("rank 0 prints a progress line at this interval"),
    "wall_clock_breakdown": honoured("forward, backward and step are timed and printed"),
    "memory_breakdown": honoured("memory usage is printed per phase"),
    "dump_state": honoured("the plan is printed at engine initialization"),
    "log_level": honoured("level of the dsengine logger"),
    "flops_profiler.enabled": honoured("torch's FLOP counter at profile_step"),
    "flops_profiler.profile_step": honoured("step to profile"),
    "flops_profiler.module_depth": honoured("depth of the printed table"),
    "flops_profiler.top_modules": honoured("modules printed per depth"),
    "flops_profiler.detailed": honoured("prints every module instead of the summary"),
    "flops_profiler.output_file": honoured("output file of the profile"),
    "flops_profiler.recompute_fwd_factor": honoured("counts recomputed forward passes"),
    "comms_logger.enabled": honoured("collectives are counted by size"),
    "comms_logger.prof_all": honoured("every collective is counted"),
    "comms_logger.prof_ops": honoured("only these collectives are counted"),
    "comms_logger.verbose": honoured("each collective is printed"),
    "comms_logger.debug": inert("caller names are not recorded"),
    "timers.throughput.enabled": honoured("samples per second in the printed line"),
    "timers.throughput.synchronized": honoured("the device is synchronized before timing"),
    "activation_checkpointing.partition_activations": inert(
        "the inputs of blocks are whole on each tensor-parallel rank"
    ),
    "activation_checkpointing.cpu_checkpointing": honoured(
        "activation checkpoints of the repeated blocks are offloaded to host memory"
    ),
    "activation_checkpointing.contiguous_memory_optimization": inert(
        "requires partitioned activations"
    ),
    "activation_checkpointing.number_checkpoints": inert("every block is checkpointed"),
    "activation_checkpointing.synchronize_checkpoint_boundary": honoured(
        "the device is synchronized at each checkpoint"
    ),
    "activation_checkpointing.profile": inert("use flops_profiler or torch.profiler"),
    "checkpoint.tag_validation": honoured("tags are compared across ranks before saving"),
    "checkpoint.load_universal": inert("all checkpoints load at any world size"),
    "checkpoint.use_node_local_storage": refused(
        "checkpoints need a directory that all ranks can read; save to shared storage and remove "
        "the key",
        Condition(
            "if on and there are several nodes",
            lambda value, config: config.checkpointing.node_local_storage,
        ),
    )
    + inert("all ranks of a single node share its storage"),
    "checkpoint.parallel_write.pipeline_stage": inert("there is one pipeline stage"),
    "checkpoint.checkpoint_serialization": inert("checkpoints use safetensors and torch's format"),
    "checkpoint.writer.decoupled": inert("files are written before save_checkpoint returns", OFF)
    + inert("states on NVMe are written before save_checkpoint returns", OPTIMIZER_ON_NVME)
    + honoured("a thread writes a copy in host memory while training continues"),
    "checkpoint.writer.type": refused("it writes no files; remove the key", MOCK)
    + inert("all ranks write their shards in parallel, with dsengine's writer"),
    "datastates_ckpt": off_or_refused(FEATURES["datastates_ckpt"], "DataStates is off"),
} | {
    f"{monitor}.{key}": honoured(f"rank 0 reports lr, loss scale and timings to {monitor}")
    for monitor, keys in {
        "tensorboard": ("enabled", "output_path", "job_name"),
        "csv_monitor": ("enabled", "output_path", "job_name"),
        "wandb": ("enabled", "group", "team", "project"),
        "comet": (
            *("enabled", "samples_log_interval", "project", "workspace", "api_key"),
            *("experiment_name", "experiment_key", "online", "mode"),
        ),
    }.items()
    for key in keys
}
