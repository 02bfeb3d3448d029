"""DeepSpeed's names that dsengine does not have, and the alternatives.

Scripts get the same message in three cases: ``from dsengine.moe.layer import MoE`` (ImportError),
``from dsengine import PipelineModule`` (ImportError), and ``deepspeed.init_inference(...)``
(AttributeError, so that ``hasattr`` is False).
"""

from collections.abc import Callable

_INFERENCE = "for inference, call engine.module.generate() or serve the output of save_16bit_model"
_PIPELINE = "pipeline parallelism is not supported: use zero_optimization.stage 3"
EXPERTS = "expert parallelism is not supported: keep experts as ordinary modules with stage 3"
_TENSORS = "tensor parallelism is not supported: use zero_optimization.stage 3"
_SEQUENCES = "sequence parallelism is not supported: use activation_checkpointing"
KERNELS = "there are no kernels to build: use torch's modules and scaled_dot_product_attention"
_COMPRESSION = "use torch.ao.quantization, or prune before training"
_CURRICULUM = "curriculum learning is not supported: pass training_data or your own loader"
_HYBRID = "generate with engine.module.generate() in engine.eval(), on all ranks with stage 3"

INSTEAD = {
    "DeepSpeedHybridEngine": _HYBRID,
    "DeepSpeedTransformerConfig": KERNELS,
    "DeepSpeedTransformerLayer": KERNELS,
    "InferenceEngine": _INFERENCE,
    "PipelineEngine": _PIPELINE,
    "PipelineModule": _PIPELINE,
    "autotuning": "dsconfig tune finds a config that fits",
    "comm.TorchBackend": "the operations of dsengine.comm are those of torch.distributed",
    "compile": "DeepCompile is not supported: use torch.compile",
    "compression": _COMPRESSION,
    "inference": _INFERENCE,
    "init_inference": _INFERENCE,
    "io": "engine.save_checkpoint writes a checkpoint, torch.save any other file",
    "launcher.multinode_runner": "dsconfig run --emit slurm, or ssh, prints a job of several hosts",
    "linear": "use a LoRA library; frozen weights are sharded like all others",
    "model_implementations": _INFERENCE,
    "module_inject": _INFERENCE,
    "moe": EXPERTS,
    "ops.aio.aio_handle": "configure NVMe offload with offload_optimizer and offload_param",
    "ops.lamb": "use FusedAdam, or pass an optimizer of your own",
    "ops.sparse_attention": KERNELS,
    "ops.transformer": KERNELS,
    "pipe": _PIPELINE,
    "replace_transformer_layer": _INFERENCE,
    "runtime.data_pipeline": _CURRICULUM,
    "runtime.domino": _TENSORS,
    "runtime.fp16.loss_scaler": "set the loss scale in the config",
    "runtime.fp16.onebit": "1-bit optimizers are not supported: use FusedAdam",
    "runtime.hybrid_engine": _HYBRID,
    "runtime.pipe": _PIPELINE,
    "runtime.sequence_parallel": _SEQUENCES,
    "runtime.tensor_parallel": _TENSORS,
    "sequence": _SEQUENCES,
    "set_autotp_mode": _TENSORS,
    "tp_model_init": _TENSORS,
    "utils.groups._get_sequence_parallel_group": _SEQUENCES,
}
"""By name below ``deepspeed``; names inside of them are refused too."""


def refusal(name: str) -> str | None:
    """Return the error message for ``deepspeed.<name>``; None if it is not listed."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if (instead := INSTEAD.get(".".join(parts[:length]))) is not None:
            return f"dsengine does not implement deepspeed.{name}: {instead}"
    return None


def missing(module: str, below: str) -> Callable[[str], object]:
    """Return a ``__getattr__`` for ``module``, which implements ``deepspeed.<below>``."""

    def __getattr__(name: str) -> object:
        path = f"{below}.{name}" if below else name
        raise AttributeError(refusal(path) or f"module {module!r} has no attribute {name!r}")

    return __getattr__
