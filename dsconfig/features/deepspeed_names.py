"""What dsengine does not have of the module ``deepspeed``, and the alternatives.

Names that it has are not listed: where they live is the engine's table. Scripts get the same
message in three cases: ``from dsengine.moe.layer import MoE`` (ImportError), ``from dsengine import
InferenceEngine`` (ImportError), and ``deepspeed.init_inference(...)`` (AttributeError, so that
``hasattr`` is False).
"""

from collections.abc import Iterator, Mapping

from dsconfig.features.table import FEATURES, Capability, Status


def _by_name(names_of: Mapping[str, str]) -> dict[str, str]:
    """Return the alternative to each name, from the names of each feature or alternative."""
    texts = {FEATURES[key].text if key in FEATURES else key: names_of[key] for key in names_of}
    return dict(sorted((name, text) for text in texts for name in texts[text].split()))


_NAMES_OF = {
    "kernels": "DeepSpeedTransformerConfig DeepSpeedTransformerLayer ops ops.transformer",
    "dual_pipe": "DualPipeVEngine DualPipeVModule runtime.pipe.dualpipev",
    "train_batch() runs the schedule; dsconfig.pipelines.training_events lists its events": (
        "pipe runtime.pipe runtime.pipe.p2p runtime.pipe.schedule"
    ),
    "deepcompile": "compile ops.compile",
    "compression_training": "compression runtime.weight_quantizer",
    "datastates_ckpt": "datastates",
    "moe_layers": "moe",
    "random_ltd": "ops.random_ltd",
    "sparse_attention": "ops.sparse_attention",
    "curriculum_learning": "runtime.data_pipeline",
    "one_bit_optimizers": "runtime.fp16.onebit",
    "super_offload": "runtime.superoffload",
    "zenflow": "runtime.zenflow",
    "engine.deepspeed_io(dataset) returns a loader for this rank": (
        "DeepSpeedDataLoader runtime.dataloader"
    ),
    "generate with engine.generate() in engine.eval(), on all ranks": (
        "DeepSpeedHybridEngine runtime.hybrid_engine runtime.hybrid_engine_graph runtime.rollout"
    ),
    "for inference, call engine.module.generate() or serve the output of save_16bit_model": (
        "DeepSpeedInferenceConfig InferenceEngine constants default_inference_config inference "
        "init_inference model_implementations module_inject replace_transformer_layer "
        "runtime.state_dict_factory utils.static_cache utils.types"
    ),
    'select the optimizer with {"type": "Muon"} in the config': (
        "KV MLA_KV MLA_Q NOT_HEAD_BLOCKED QUERY resolve_per_head_muon_after_sharding "
        "runtime.zero.muon set_optimizer_flags"
    ),
    "dsengine runs on CUDA, ROCm and the CPU: see get_accelerator()": "accelerator",
    "dsconfig tune finds a config that fits": "autotuning",
    "engine.load_checkpoint loads at any world size and stage, and `dsconfig checkpoint convert` "
    "writes DeepSpeed's files": "checkpoint",
    "the operations of dsengine.comm are those of torch.distributed": (
        "comm comm.TorchBackend runtime.comm"
    ),
    "set the block comms_logger; its keys: dsconfig explain comms_logger": "comm.config",
    "write the key as a string: dsconfig explain lists the keys with their defaults": (
        "comm.constants profiling.constants runtime.constants runtime.model_checkpointing "
        "runtime.precision_config runtime.zero.config utils.config"
    ),
    "use typing.get_type_hints": "compat",
    "dsconfig doctor checks this machine": "env_report",
    "import dsengine.git_version_info.version and torch_info": "git_version_info",
    "engine.save_checkpoint writes a checkpoint, torch.save any other file": "io",
    "dsconfig run --emit slurm, or ssh, prints a job of several hosts": (
        "launcher launcher.multinode_runner"
    ),
    "use a LoRA library; frozen weights are sharded like all others": "linear",
    "dsconfig.read(path) reads a config": "load_ds_config",
    "set tensor_parallel.autotp_size in the config, or call tp_model_init": (
        "merge_tp_model_init_into_config record_tp_model_init_args runtime.domino "
        "runtime.tensor_parallel set_autotp_mode"
    ),
    "write metrics with monitor.monitor.MonitorMaster": "monitor",
    "configure NVMe offload with offload_optimizer and offload_param; dsconfig doctor measures a "
    "disk": "nvme",
    "use FusedAdam or DeepSpeedCPUAdam; offload_optimizer decides where states are": "ops.adam",
    "configure offload with offload_optimizer and offload_param": (
        "ops.aio runtime.swap_tensor runtime.zero.offload_config"
    ),
    "use FusedAdam, or pass an optimizer of your own": "ops.lamb",
    "get_accelerator().pin_memory(tensor) returns a pinned copy": (
        "ops.pin_memory utils.pin_memory utils.pin_memory_tracker"
    ),
    "profile with the block flops_profiler of the config": "profiling",
    "configure activation_checkpointing, and call checkpointing.checkpoint(function, *args)": (
        "runtime.activation_checkpointing"
    ),
    "engine.backward and engine.step do this themselves": "runtime.base_optimizer runtime.utils",
    "engine.optimizer is the optimizer, whose class is that of the config; "
    "engine.bfloat16_enabled() tests for bf16": "runtime.bf16_optimizer",
    "engine.save_checkpoint and load_checkpoint; engine.checkpointer().asynchronous = True saves "
    "in the background": "runtime.checkpoint_engine",
    "call torch.nn.functional.cross_entropy on parts": "runtime.chunked_cross_entropy",
    "use engine.compile(), torch.compile and torch.compiler": "runtime.compiler",
    "dsengine.DeepSpeedConfig parses a config; read a key of a dict with dict.get": (
        "runtime.config"
    ),
    "derive from DeepSpeedConfigModel, or use pydantic": "runtime.config_utils",
    "use the methods of the engine that initialize() returns": "runtime.engine",
    "set the loss scale in the config, and read engine.loss_scale": "runtime.fp16",
    "set data_types.keep_in_fp32_modules in the config": "runtime.keep_in_fp32",
    "set the block scheduler, or pass lr_scheduler to initialize()": "runtime.lr_schedules",
    "set disable_python_gc in the config": "runtime.python_gc",
    "for sequence parallelism, use UlyssesSPAttentionHF or DistributedAttention": (
        "runtime.sequence_parallel sequence"
    ),
    "set sparse_gradients in the config; tensors are torch's sparse ones": "runtime.sparse_tensor",
    "set the block torch_autocast in the config": "runtime.torch_autocast",
    "parameters are sharded by torch: gather them with zero.GatheredParameters, or read them with "
    "utils.safe_get_full_fp32_param and safe_get_full_grad": (
        "runtime.zero utils.mixed_precision_linkage utils.tensor_fragment"
    ),
    "utils.set_z3_leaf_modules marks modules as leaves": (
        "runtime.zero.leaf_module_config utils.z3_leaf_module"
    ),
    "engine.offload_states() and reload_states() move all states": "runtime.zero.offload_states",
    "use utils.groups": "utils.bwc",
    "set the block comms_logger of the config": "utils.comms_logging",
    "use model.named_parameters()": "utils.debug",
    "catch Exception, or the class that the error message names": "utils.exceptions",
    "the groups are torch's: get_data_parallel_group() and torch.distributed.new_group": (
        "utils.groups"
    ),
    "use dsengine.utils.logger, a logging.Logger": "utils.logging",
    "start the script under numactl or taskset": "utils.numa",
    "use torch.cuda.nvtx.range, or get_accelerator().range_push": "utils.nvtx",
    "enable wall_clock_breakdown, or use utils.timer.SynchronizedWallClockTimer": "utils.timer",
    "use torch's own functions": "utils.torch",
    "get_fp32_state_dict_from_zero_checkpoint reads any checkpoint": "utils.zero_to_fp32",
}
NAMES = _by_name(_NAMES_OF)
"""By name below ``deepspeed``, the alternative; names inside of them are refused too."""

_ATTRIBUTES_OF = {
    "moe_layers": (
        "all_to_all_group expert_data_parallel_group expert_parallel_group load_moe_state_dict "
        "local_all_to_all_group"
    ),
    "curriculum_learning": (
        "curriculum_learning_config data_sampling_config set_custom_curriculum_learning_schedule"
    ),
    "deepcompile": (
        "get_autosp_backend get_autotp_backend get_compile_time get_deepcompile_backend "
        "get_deepspeed_compile_backend register_compile_pass"
    ),
    "random_ltd": "random_ltd_config random_ltd_initialize random_ltd_scheduler",
    "backward() reduces gradients; use torch.distributed for tensors of your own": (
        "all_gather_scalar allreduce_and_copy allreduce_bucket allreduce_no_retain "
        "buffered_allreduce_fallback sparse_all_gather sparse_allreduce sparse_allreduce_bucket "
        "sparse_allreduce_no_retain"
    ),
    "dsconfig tune finds a config that fits": "autotuning_model_info",
    "save_checkpoint() and load_checkpoint(); checkpointer() has their settings": (
        "checkpoint_engine checkpoint_mp_rank loaded_checkpoint_dp_world_size "
        "loaded_checkpoint_mp_world_size save_non_zero_checkpoint save_zero_checkpoint"
    ),
    "read lr_scheduler": "client_lr_scheduler",
    "read optimizer": "client_optimizer",
    "set gradient_clipping: step() clips": "clip_fp32_gradients",
    "read config['data_efficiency'] if it is set": "data_efficiency_config",
    "use no_sync(), or coalesce_grad_reduction() from stage 2 on": "enable_backward_allreduce",
    "enable wall_clock_breakdown; tput_timer has the throughput": (
        "engine_timers engine_timers_cache fwd_duration get_wall_clock_timers "
        "print_forward_breakdown timers"
    ),
    "deepspeed_io() returns a loader for this rank": "first_dataloader_check",
    "use torch.nn.utils.parameters_to_vector": "flatten",
    "set flops_profiler, or call get_model_profile()": "flops flops_profiler",
    "set the block optimizer, or pass an optimizer to initialize()": (
        "get_optimizer_configuration _configure_basic_optimizer _configure_optimizer "
        "_configure_zero_optimizer"
    ),
    "load_state_dict() loads full weights": "load_module_state_dict",
    "sum the losses that the engine returns": "losses",
    "register hooks on the model": "module_forward_post_hook module_forward_pre_hook",
    "build a monitor with monitor.monitor.MonitorMaster": "monitor summary_events",
    "pass scale_wrt_gas to backward()": "scale_wrt_gas",
    "build another engine, with the batch size in its config": (
        "set_train_batch_size set_train_micro_batch_size"
    ),
    "read zero_offload_optimizer() and zero_offload_param()": "swap_tensor_config",
    "read autotp_size()": "tensor_parallel_config",
    "read config['torch_autocast']": "torch_autocast_lower_precision_safe_modules",
    "read loss_scale": "torch_autocast_z0_gradscaler",
    "read training_dataloader.dataset": "training_data",
    "use torch.nn.utils.vector_to_parameters": "unflatten",
    "step() updates the weights at each accumulation boundary": "update_interval",
    "backward() scales the loss": "warn_unscaled_loss",
}
ATTRIBUTES = _by_name(_ATTRIBUTES_OF)
"""Attributes of DeepSpeed's engine that dsengine does not have, and the alternatives."""
_PARAMETERS_OF = {
    "gather the parameters with zero.GatheredParameters": "all_gather_coalesced",
    "build the module inside zero.Init, or pass it to zero.Init": "convert_to_zero_parameters",
    "read ds_numel; shards are not padded": "ds_numel_aligned",
    "read the mesh in engine.topology": (
        "ds_secondary_tensor_group_size ds_secondary_tensor_num_of_groups "
        "ds_zero_param_process_group"
    ),
    "configure offload with offload_param": "nvme_swapper",
    "engine.backward reduces gradients; read them with utils.safe_get_full_grad": (
        "partition_gradients reduce_gradients_at_owner"
    ),
}
PARAMETERS = _by_name(_PARAMETERS_OF)
"""Attributes of DeepSpeed's parameters at stage 3 that dsengine does not have, and the
alternatives."""
_NO_LAUNCHER = "the ranks of one host need no launcher; omit it"
_REFUSED_FLAGS = {
    "force_multi": "the ranks of one host are started locally",
    "autotuning": "dsconfig tune finds a config that fits",
    "enable_each_rank_log": "torchrun --redirects 3 --log-dir DIR writes a log of each rank",
    "save_pid": "the process itself is the launcher",
    "venv_script": "use the Python of that environment",
    **{f"launcher {name}": _NO_LAUNCHER for name in ("openmpi", "mpich", "impi", "mvapich")},
    "launcher slurm": "`dsconfig run CONFIG --emit slurm -- SCRIPT` prints a job script",
}
_BINDING = "start the launcher under numactl or taskset to bind its ranks"
_BINDS = ("bind_cores_to_rank", "bind_core_list")
FLAGS: Mapping[str, Capability] = {
    name: Capability(Status.REFUSED, f"--{name} is not supported", instead)
    for name, instead in _REFUSED_FLAGS.items()
} | {name: Capability(Status.INERT, f"--{name} has no effect", _BINDING) for name in _BINDS}
"""Flags of DeepSpeed's launcher that dsengine's refuses or ignores; ``launcher slurm`` is the value
of one."""


def refusal(name: str, origin: str = "") -> str | None:
    """Return the error message for ``deepspeed.<name>``; None if it is not listed.

    ``origin``: the path that DeepSpeed defines the name at, if it is another.
    """
    for path in (name, *_upwards(origin), *_upwards(name)):
        if (instead := NAMES.get(path)) is not None:
            return missing(name, instead)
    return None


def missing(name: str, instead: str) -> str:
    """Return the error message for ``deepspeed.<name>``."""
    return f"dsengine does not implement deepspeed.{name}: {instead}"


def _upwards(path: str) -> Iterator[str]:
    """Yield ``a.b.c``, ``a.b`` and ``a``."""
    while path:
        yield path
        path = path.rpartition(".")[0]
