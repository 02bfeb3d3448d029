"""Links to the sections of DeepSpeed's configuration page.

The anchors are those of the headings in docs/_pages/config-json.md of DeepSpeed, as kramdown
generates them.
"""

PAGE = "https://www.deepspeed.ai/docs/config-json/"
_SECTIONS = {
    "batch-size-related-parameters": "train_batch_size train_micro_batch_size_per_gpu "
    "gradient_accumulation_steps managed_gradient_accumulation",
    "optimizer-parameters": "optimizer",
    "scheduler-parameters": "scheduler",
    "communication-options": "communication_data_type prescale_gradients "
    "gradient_predivide_factor sparse_gradients gradient_allreduce_op",
    "fp16-training-options": "fp16",
    "bfloat16-training-options": "bf16 bfloat16",
    "automatic-mixed-precision-amp-training-options": "amp",
    "pytorch-automatic-mixed-precision-torchautocast-training-options": "torch_autocast",
    "gradient-clipping": "gradient_clipping",
    "zero-optimizations-for-fp16-training": "zero_optimization",
    "parameter-offloading": "zero_optimization.offload_param",
    "optimizer-offloading": "zero_optimization.offload_optimizer",
    "asynchronous-io": "aio",
    "tensor-parallel-autotp": "tensor_parallel",
    "hybrid-engine": "hybrid_engine",
    "expert-parallel-autoep": "expert_parallel",
    "logging": "steps_per_print wall_clock_breakdown dump_state",
    "autotuning": "autotuning",
    "flops-profiler": "flops_profiler",
    "activation-checkpointing": "activation_checkpointing",
    "sparse-attention": "sparse_attention",
    "data-efficiency": "data_efficiency",
    "curriculum-learning": "curriculum_learning",
    "monitoring-module": "tensorboard wandb comet csv_monitor",
    "elastic-training-config-v01-and-v02": "elasticity",
    "communication-logging": "comms_logger",
    "compression": "compression_training",
    "layer-reduction": "compression_training.layer_reduction",
    "weight-quantization": "compression_training.weight_quantization",
    "activation-quantization": "compression_training.activation_quantization",
    "sparse-pruning": "compression_training.sparse_pruning",
    "row-pruning": "compression_training.row_pruning",
    "head-pruning": "compression_training.head_pruning",
    "channel-pruning": "compression_training.channel_pruning",
    "checkpoint-options": "checkpoint",
    "data-type-options": "data_types",
}
_ANCHORS = {path: anchor for anchor, paths in _SECTIONS.items() for path in paths.split()}


def link(path: str) -> str | None:
    """Return the address of the section that documents a key, by dotted path; None if unknown."""
    while path:
        if path in _ANCHORS:
            return f"{PAGE}#{_ANCHORS[path]}"
        path = path.rpartition(".")[0]
    return None
