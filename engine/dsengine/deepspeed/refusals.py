"""DeepSpeed's names that dsengine does not have, and the alternatives.

Scripts get the same message in three cases: ``from dsengine.moe.layer import MoE`` (ImportError),
``from dsengine import PipelineModule`` (ImportError), and ``deepspeed.init_inference(...)``
(AttributeError, so that ``hasattr`` is False).
"""

from collections.abc import Iterator

_INFERENCE = "for inference, call engine.module.generate() or serve the output of save_16bit_model"
_PIPELINE = "pipeline parallelism is not supported: use zero_optimization.stage 3"
EXPERTS = "expert parallelism is not supported: keep experts as ordinary modules with stage 3"
_TENSORS = "set tensor_parallel.autotp_size in the config, or call tp_model_init"
_SEQUENCES = "for sequence parallelism, use UlyssesSPAttentionHF or DistributedAttention"
KERNELS = "there are no kernels to build: use torch's modules and scaled_dot_product_attention"
_COMPRESSION = "use torch.ao.quantization, or prune before training"
_CURRICULUM = "curriculum learning is not supported: pass training_data or your own loader"
_HYBRID = "generate with engine.generate() in engine.eval(), on all ranks"
_COMPILE = "DeepCompile is not supported: use engine.compile() or torch.compile"
_OFFLOAD = "configure offload with offload_optimizer and offload_param"
_CHECKPOINT = (
    "engine.load_checkpoint loads at any world size and stage, and `dsconfig checkpoint convert` "
    "writes DeepSpeed's files"
)
_COLLECTIVES = "the operations of dsengine.comm are those of torch.distributed"
_HOSTS = "dsconfig run --emit slurm, or ssh, prints a job of several hosts"
_KEYS = "write the key as a string: dsconfig explain lists the keys with their defaults"
_SHARDS = (
    "parameters are sharded by torch: gather them with zero.GatheredParameters, or read them with "
    "utils.safe_get_full_fp32_param and safe_get_full_grad"
)
_GROUPS = "the groups are torch's: get_data_parallel_group() and torch.distributed.new_group"
_STEP = "engine.backward and engine.step do this themselves"
_TIMERS = "enable wall_clock_breakdown, or use utils.timer.SynchronizedWallClockTimer"
_DEVICES = "dsengine runs on CUDA, ROCm and the CPU: see get_accelerator()"
_MUON = 'select the optimizer with {"type": "Muon"} in the config'

INSTEAD = {
    "DeepSpeedDataLoader": "engine.deepspeed_io(dataset) returns a loader for this rank",
    "DeepSpeedHybridEngine": _HYBRID,
    "DeepSpeedInferenceConfig": _INFERENCE,
    "DeepSpeedTransformerConfig": KERNELS,
    "DeepSpeedTransformerLayer": KERNELS,
    "DualPipeVEngine": _PIPELINE,
    "DualPipeVModule": _PIPELINE,
    "InferenceEngine": _INFERENCE,
    "KV": _MUON,
    "MLA_KV": _MUON,
    "MLA_Q": _MUON,
    "NOT_HEAD_BLOCKED": _MUON,
    "PipelineEngine": _PIPELINE,
    "PipelineModule": _PIPELINE,
    "QUERY": _MUON,
    "accelerator": _DEVICES,
    "autotuning": "dsconfig tune finds a config that fits",
    "checkpoint": _CHECKPOINT,
    "checkpoint.autoep_affine": EXPERTS,
    "checkpoint.autoep_universal": EXPERTS,
    "checkpoint.autoep_zero3_metadata": EXPERTS,
    "comm": _COLLECTIVES,
    "comm.TorchBackend": _COLLECTIVES,
    "comm.config": "set the block comms_logger; its keys: dsconfig explain comms_logger",
    "comm.constants": _KEYS,
    "compat": "use typing.get_type_hints",
    "compile": _COMPILE,
    "compression": _COMPRESSION,
    "constants": _INFERENCE,
    "datastates": "engine.checkpointer().asynchronous = True saves in the background",
    "default_inference_config": _INFERENCE,
    "env_report": "dsconfig doctor checks this machine",
    "git_version_info": "import dsengine.git_version_info.version and torch_info",
    "inference": _INFERENCE,
    "init_inference": _INFERENCE,
    "io": "engine.save_checkpoint writes a checkpoint, torch.save any other file",
    "launcher": _HOSTS,
    "launcher.multinode_runner": _HOSTS,
    "linear": "use a LoRA library; frozen weights are sharded like all others",
    "load_ds_config": "dsconfig.read(path) reads a config",
    "merge_tp_model_init_into_config": _TENSORS,
    "model_implementations": _INFERENCE,
    "module_inject": _INFERENCE,
    "moe": EXPERTS,
    "monitor": "write metrics with monitor.monitor.MonitorMaster",
    "nvme": "configure NVMe offload with offload_optimizer and offload_param; dsconfig doctor "
    "measures a disk",
    "ops": KERNELS,
    "ops.adam": "use FusedAdam or DeepSpeedCPUAdam; offload_optimizer decides where states are",
    "ops.aio": _OFFLOAD,
    "ops.compile": _COMPILE,
    "ops.lamb": "use FusedAdam, or pass an optimizer of your own",
    "ops.pin_memory": "get_accelerator().pin_memory(tensor) returns a pinned copy",
    "ops.random_ltd": _CURRICULUM,
    "ops.sparse_attention": KERNELS,
    "ops.transformer": KERNELS,
    "pipe": _PIPELINE,
    "profiling": "profile with the block flops_profiler of the config",
    "profiling.constants": _KEYS,
    "record_tp_model_init_args": _TENSORS,
    "replace_transformer_layer": _INFERENCE,
    "resolve_per_head_muon_after_sharding": _MUON,
    "runtime.activation_checkpointing": "configure activation_checkpointing, and call "
    "checkpointing.checkpoint(function, *args)",
    "runtime.base_optimizer": _STEP,
    "runtime.bf16_optimizer": "engine.optimizer is the optimizer, whose class is that of the "
    "config; engine.bfloat16_enabled() tests for bf16",
    "runtime.checkpoint_engine": "engine.save_checkpoint and load_checkpoint; "
    "engine.checkpointer().asynchronous = True saves in the background",
    "runtime.chunked_cross_entropy": "call torch.nn.functional.cross_entropy on parts",
    "runtime.comm": _COLLECTIVES,
    "runtime.compiler": "use engine.compile(), torch.compile and torch.compiler",
    "runtime.config": "dsengine.DeepSpeedConfig parses a config; read a key of a dict with "
    "dict.get",
    "runtime.config_utils": "derive from DeepSpeedConfigModel, or use pydantic",
    "runtime.constants": _KEYS,
    "runtime.data_pipeline": _CURRICULUM,
    "runtime.dataloader": "engine.deepspeed_io(dataset) returns a loader for this rank",
    "runtime.domino": _TENSORS,
    "runtime.engine": "use the methods of the engine that initialize() returns",
    "runtime.fp16": "set the loss scale in the config, and read engine.loss_scale",
    "runtime.fp16.onebit": "1-bit optimizers are not supported: use FusedAdam",
    "runtime.hybrid_engine": _HYBRID,
    "runtime.hybrid_engine_graph": _HYBRID,
    "runtime.keep_in_fp32": "set data_types.keep_in_fp32_modules in the config",
    "runtime.lr_schedules": "set the block scheduler, or pass lr_scheduler to initialize()",
    "runtime.model_checkpointing": _KEYS,
    "runtime.pipe": _PIPELINE,
    "runtime.precision_config": _KEYS,
    "runtime.python_gc": "set disable_python_gc in the config",
    "runtime.rollout": _HYBRID,
    "runtime.sequence_parallel": _SEQUENCES,
    "runtime.sparse_tensor": "set sparse_gradients in the config; tensors are torch's sparse ones",
    "runtime.state_dict_factory": _INFERENCE,
    "runtime.superoffload": _OFFLOAD,
    "runtime.swap_tensor": _OFFLOAD,
    "runtime.tensor_parallel": _TENSORS,
    "runtime.torch_autocast": "set the block torch_autocast in the config",
    "runtime.utils": _STEP,
    "runtime.weight_quantizer": _COMPRESSION,
    "runtime.zenflow": _OFFLOAD,
    "runtime.zero": _SHARDS,
    "runtime.zero.config": _KEYS,
    "runtime.zero.leaf_module_config": "utils.set_z3_leaf_modules marks modules as leaves",
    "runtime.zero.muon": _MUON,
    "runtime.zero.offload_config": _OFFLOAD,
    "runtime.zero.offload_states": "engine.offload_states() and reload_states() move all states",
    "sequence": _SEQUENCES,
    "set_autotp_mode": _TENSORS,
    "set_optimizer_flags": _MUON,
    "utils.bwc": "there is one model-parallel rank: use utils.groups",
    "utils.comms_logging": "set the block comms_logger of the config",
    "utils.config": _KEYS,
    "utils.debug": "use model.named_parameters()",
    "utils.exceptions": "catch Exception, or the class that the error message names",
    "utils.groups": _GROUPS,
    "utils.logging": "use dsengine.utils.logger, a logging.Logger",
    "utils.mixed_precision_linkage": _SHARDS,
    "utils.numa": "start the script under numactl or taskset",
    "utils.nvtx": "use torch.cuda.nvtx.range, or get_accelerator().range_push",
    "utils.pin_memory": "get_accelerator().pin_memory(tensor) returns a pinned copy",
    "utils.pin_memory_tracker": "get_accelerator().pin_memory(tensor) returns a pinned copy",
    "utils.static_cache": _INFERENCE,
    "utils.tensor_fragment": _SHARDS,
    "utils.timer": _TIMERS,
    "utils.torch": "use torch's own functions",
    "utils.types": _INFERENCE,
    "utils.z3_leaf_module": "utils.set_z3_leaf_modules marks modules as leaves",
    "utils.zero_to_fp32": "get_fp32_state_dict_from_zero_checkpoint reads any checkpoint",
}
"""By name below ``deepspeed``; names inside of them are refused too."""


def refusal(name: str, origin: str = "") -> str | None:
    """Return the error message for ``deepspeed.<name>``; None if it is not listed.

    ``origin``: the path that DeepSpeed defines the name at, if it is another.
    """
    for path in (name, *_upwards(origin), *_upwards(name)):
        if (instead := INSTEAD.get(path)) is not None:
            return f"dsengine does not implement deepspeed.{name}: {instead}"
    return None


def _upwards(path: str) -> Iterator[str]:
    """Yield ``a.b.c``, ``a.b`` and ``a``."""
    while path:
        yield path
        path = path.rpartition(".")[0]
