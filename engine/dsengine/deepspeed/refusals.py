"""Names of DeepSpeed that have no counterpart here, and what to do instead.

A script meets them in three ways, and each ends in the same words: ``from dsengine.moe.layer
import MoE`` (ImportError), ``from dsengine import PipelineModule`` (ImportError), and
``deepspeed.init_inference(...)`` (AttributeError, so that ``hasattr`` is False).
"""

from collections.abc import Callable

_INFERENCE = "engines train: call engine.module.generate(), or serve what save_16bit_model wrote"
_PIPELINE = "a model is not divided into stages of layers: use zero_optimization.stage 3"
EXPERTS = "experts are not placed on ranks of their own: keep them ordinary modules under stage 3"
_TENSORS = "a layer is not divided for computing: use zero_optimization.stage 3"
_SEQUENCES = "a sequence is not divided among ranks: use activation_checkpointing for long ones"
KERNELS = "there are no kernels to build: use torch's modules and scaled_dot_product_attention"
_COMPRESSION = "use torch.ao.quantization, or prune before training"
_CURRICULUM = "batches are what your loader makes of them: pass training_data or your own loader"
_HYBRID = "generate with engine.module.generate() in engine.eval(), on all ranks at stage 3"

INSTEAD = {
    "DeepSpeedHybridEngine": _HYBRID,
    "DeepSpeedTransformerConfig": KERNELS,
    "DeepSpeedTransformerLayer": KERNELS,
    "InferenceEngine": _INFERENCE,
    "PipelineEngine": _PIPELINE,
    "PipelineModule": _PIPELINE,
    "autotuning": "dsconfig tune finds a config that fits",
    "comm.TorchBackend": "the operations of dsengine.comm are those of torch.distributed",
    "compile": "compile the model with torch.compile: the passes of DeepCompile are not built",
    "compression": _COMPRESSION,
    "inference": _INFERENCE,
    "init_inference": _INFERENCE,
    "io": "engine.save_checkpoint writes a checkpoint, torch.save any other file",
    "launcher.multinode_runner": "dsconfig run --emit slurm, or ssh, prints a job of several hosts",
    "linear": "use a LoRA library; frozen weights are divided like all others",
    "model_implementations": _INFERENCE,
    "module_inject": _INFERENCE,
    "moe": EXPERTS,
    "ops.aio.aio_handle": "the config offloads to NVMe: offload_optimizer and offload_param",
    "ops.lamb": "use FusedAdam, or pass an optimizer of your own",
    "ops.sparse_attention": KERNELS,
    "ops.transformer": KERNELS,
    "pipe": _PIPELINE,
    "replace_transformer_layer": _INFERENCE,
    "runtime.data_pipeline": _CURRICULUM,
    "runtime.domino": _TENSORS,
    "runtime.fp16.loss_scaler": "the config sets the loss scale",
    "runtime.fp16.onebit": "1-bit optimizers are not built: use FusedAdam",
    "runtime.hybrid_engine": _HYBRID,
    "runtime.pipe": _PIPELINE,
    "runtime.sequence_parallel": _SEQUENCES,
    "runtime.tensor_parallel": _TENSORS,
    "sequence": _SEQUENCES,
    "set_autotp_mode": _TENSORS,
    "tp_model_init": _TENSORS,
    "utils.groups._get_sequence_parallel_group": _SEQUENCES,
}
"""By name below ``deepspeed``; what lies deeper is refused with it."""


def refusal(name: str) -> str | None:
    """Return why ``deepspeed.<name>`` is not here and what to do; None when nothing is known."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if (instead := INSTEAD.get(".".join(parts[:length]))) is not None:
            return f"dsengine has no counterpart of deepspeed.{name}: {instead}"
    return None


def missing(module: str, below: str) -> Callable[[str], object]:
    """Return the ``__getattr__`` of ``module``, which is ``deepspeed.<below>``."""

    def __getattr__(name: str) -> object:
        path = f"{below}.{name}" if below else name
        raise AttributeError(refusal(path) or f"module {module!r} has no attribute {name!r}")

    return __getattr__
