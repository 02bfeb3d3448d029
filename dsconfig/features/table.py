"""Features, parallel degrees and styles that dsengine supports or refuses."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple


class Status(StrEnum):
    """How dsengine handles a key or a feature; the values are those of the JSON form."""

    HONOURED = "honoured"
    INERT = "inert"
    REFUSED = "refused"

    @property
    def label(self) -> str:
        """The word in text and tables."""
        return "used" if self is Status.HONOURED else self.value


class Capability(NamedTuple):
    """How dsengine handles something, under a ``condition``.

    ``reason``: the mechanism if it is used, else why not; ``instead``: the alternative if it is
    refused.
    """

    status: Status
    reason: str
    instead: str = ""
    condition: str = ""

    @property
    def text(self) -> str:
        """The reason with the alternative, as in error messages."""
        return self.joined(": ")

    def joined(self, separator: str) -> str:
        """Return the reason with the alternative."""
        return f"{self.reason}{separator}{self.instead}" if self.instead else self.reason


_REFUSED = {
    "adafactor_of_parts": "Adafactor divides its states by the rows and columns of full weights, "
    "which split layers and divided experts do not have: use AdamW, or set "
    "tensor_parallel.autotp_size and expert_parallel.autoep_size to 1",
    "amp": "apex amp is not supported: use bf16 or torch_autocast",
    "blockwise_of_parts": "optimizers of bitsandbytes cannot update split layers: use AdamW, or "
    "set tensor_parallel.autotp_size to 1",
    "closures": "LBFGS evaluates the loss several times per step, which the engine's forward, "
    "backward and step do not support: use AdamW",
    "compression_training": "compression is not supported: use torch.ao.quantization, or prune "
    "before training",
    "curriculum_learning": "curriculum learning is not supported: pass training_data or your own "
    "data loader",
    "cross_attention": "sequence parallelism does not divide cross-attention: use "
    "sequence_parallel_size 1",
    "datastates_ckpt": "DataStates is not supported: set engine.checkpointer().asynchronous = True "
    "to save in the background",
    "deepcompile": "DeepCompile is not supported: use engine.compile() or torch.compile",
    "deepcompile_parallel_passes": "DeepCompile's parallel passes are not supported: set "
    "sequence_parallel_size or tensor_parallel.autotp_size",
    "deepep": "DeepEP is not supported: write comm",
    "deepep_weighting": "it requires DeepEP, which is not supported: remove the key",
    "dynamic_batching": "dynamic batching is not supported: pass training_data or your own data "
    "loader",
    "dual_pipe": "DualPipeV is not supported: use PipelineModule, whose schedule is 1F1B",
    "eight_bit_shards": "8-bit weights of bitsandbytes cannot be sharded: set "
    "zero_optimization.stage to 1 or 2, or load the model in 4 bits",
    "eigenvalue": "eigenvalue estimation is not supported: remove the block",
    "elastic_checkpoints": "a checkpoint saved with elastic_checkpoint is not supported: load it "
    "with DeepSpeed and save without",
    "expert_presets": "this preset is unknown: write moe_layer_pattern, or use the model's own "
    "plan",
    "files_of_dry_runs": "a dry run on the CPU cannot simulate files: set the device of offload_* "
    "to cpu",
    "foreign_mpu": "models and samples divided by other code are not supported, since gradients of "
    "different shards would be averaged: pass a full model, with tensor_parallel.autotp_size, "
    "sequence_parallel_size or zero_optimization.stage 3 in the config, or train with DeepSpeed",
    "gpudirect_storage": "GPUDirect Storage is not supported: remove the key",
    "graph_harvesting": "CUDA graph harvesting is not supported: remove the key",
    "ignored_modules": "get_model_profile(ignore_modules=...) is not supported: omit it",
    "kernels": "there are no kernels to build: use torch's modules and "
    "scaled_dot_product_attention",
    "lamb_amsgrad": "Lamb does not implement amsgrad: remove the key",
    "lbfgs_arguments": "argument of LBFGS, which is not supported: remove the key",
    "model_parallel_checkpoints": "a model-parallel checkpoint is not supported: load it with "
    "DeepSpeed and save full weights",
    "moe_layers": "DeepSpeed's MoE layers are not supported: divide the experts of a model's plan, "
    "or of moe_layer_pattern, with expert_parallel",
    "msamp": "MS-AMP is not supported: remove the block",
    "mup_optimizers": "torch has no optimizer of this name: pass your own optimizer or use AdamW",
    "nebula": "Nebula is not supported: set engine.checkpointer().asynchronous = True to save in "
    "the background",
    "nested_schedulers": "nested schedulers need the optimizer: pass a function of it to "
    "initialize as lr_scheduler",
    "offload_of_other_updates": "an optimizer whose update is not elementwise, or cannot be "
    "tested, cannot be offloaded: use AdamW, Adam, SGD or Adagrad, or remove offload_optimizer",
    "one_bit_optimizers": "1-bit optimizers are not supported: use AdamW",
    "optimizer_offload_of_matrices": "Adafactor, Lamb and Muon do not support optimizer offload: "
    "remove it or use AdamW",
    "other_accelerators": "accelerators other than CUDA and ROCm GPUs are not supported: train on "
    "the CPU",
    "other_attention": "sequence parallelism does not support this attention: use "
    "flash_attention_2 or sdpa",
    "other_attention_inputs": "sequence parallelism does not divide inputs of attention other than "
    "tokens and padding: use sequence_parallel_size 1",
    "other_styles": "styles of a plan other than those of the table are not supported: write the "
    "rules tensor_parallel.partition_config.layer_specs for its layers (column for those whose "
    "outputs are split, row for those that follow), or set autotp_size to 1 and use "
    "zero_optimization.stage 3",
    "other_updates_of_shards": "an optimizer whose update or states are not elementwise, or cannot "
    "be tested, cannot update sharded parameters: use AdamW, AdamW8bit of bitsandbytes without "
    "offload_optimizer, or zero_optimization.stage 0",
    "packed_weights_of_parts": "weights that bitsandbytes has packed cannot be split: set "
    "tensor_parallel.autotp_size and the expert-parallel size to 1",
    "pipeline_accumulation": "train_batch counts the micro batches of a pipeline itself: remove "
    "managed_gradient_accumulation",
    "pipeline_additional_losses": "additional losses of a PipelineModule are not reported: return "
    "their sum from loss_fn",
    "pipeline_combinations": "pipeline stages are not combined with tensor, sequence or expert "
    "parallelism: set the other degree, or num_stages, to 1",
    "pipeline_deepspeed_files": "DeepSpeed's checkpoint files of a pipeline are not supported: "
    "unset for_deepspeed and DSENGINE_CHECKPOINTS, and use dsengine's own files",
    "pipeline_exports": "no rank of a pipeline has the weights of all stages: save a checkpoint "
    "and convert it with `dsconfig checkpoint convert`",
    "pipeline_loop": "a pipeline runs forward, backward and step in the order of its schedule: "
    "call train_batch() or eval_batch()",
    "pipeline_offload": "offloading from pipeline stages is not supported: remove "
    "offload_optimizer and offload_param, or use more stages",
    "pipeline_sparse_gradients": "sparse gradients are not summed over pipeline stages: remove "
    "sparse_gradients",
    "pipeline_stages": "gradients and parameters of pipeline stages are not sharded: set "
    "zero_optimization.stage to 1, or train a model without PipelineModule",
    "progressive_layer_drop": "progressive layer drop is not supported: remove the block",
    "quantize_training": "quantized training is not supported: remove the block",
    "random_ltd": "random-LTD is not supported: pass training_data or your own data loader",
    "sparse_attention": "sparse attention is not supported: use scaled_dot_product_attention",
    "sparse_gradient_sums": "sparse gradients cannot be accumulated in another dtype: remove "
    "data_types.grad_accum_dtype or sparse embeddings",
    "sparse_optimizer": "SparseAdam requires sparse gradients, but sharded gradients are dense: "
    "use zero_optimization.stage 0 with sparse embeddings, or AdamW",
    "super_offload": "SuperOffload is not supported: use offload_optimizer without super_offload",
    "weight_quantization": "quantized inference is not supported: remove the block",
    "zenflow": "ZenFlow is not supported: use offload_optimizer without zenflow",
}
"""By feature, named as its key if it has one: why it is refused, and what to use instead."""
FEATURES: Final[Mapping[str, Capability]] = {
    name: Capability(Status.REFUSED, *text.split(": ", 1)) for name, text in _REFUSED.items()
}


def _used(by: str) -> Capability:
    return Capability(Status.HONOURED, by)


DEGREES: Final[Mapping[str, Capability]] = {
    "sequence": _used("samples are divided along the sequence over this many ranks"),
    "tensor": _used("so many ranks share the layers that the rules, or the model's plan, split"),
    "expert": _used("so many ranks share the experts that a pattern, or the model's plan, names"),
    "pipeline": _used("so many ranks each run a stage of a PipelineModule's layers"),
}
"""Parallel degrees, by axis."""
STYLES: Final = frozenset(
    (
        *("colwise", "colwise_rep", "colwise_gather_output", "rowwise", "rowwise_rep"),
        *("rowwise_split_input", "embedding_rowwise", "embedding_colwise", "replicate"),
        *("replicated_with_grad_allreduce", "mla_kv_a_proj", "packed_colwise", "packed_rowwise"),
        *("moe_tp_experts", "moe_identity_expert", "local_params", "all_reduce"),
    )
)
"""Styles of a transformers plan that dsengine applies; it refuses models with others."""
FAULTY_PLANS: Final[Mapping[str, str]] = {
    "doge": "does not split the parameters of its attention mask",
    "esmc": "normalizes queries and keys over the heads of one rank",
    "gemma3n_text": "selects activations by the mean of a rank's part",
    "glm5_next_text": "splits the output layer of linear attention, but not the layers before",
    "inkling_text": "splits gate_up_proj, which is two matrices, in one piece",
    "inkling2_text": "splits gate_up_proj, which is two matrices, in one piece",
}
"""What is wrong with plans of transformers 5.23, by model type: they do not give the gradients of
one process."""
EXPERT_PRESETS = ("mixtral", "qwen3_moe", "qwen3_5_moe", "deepseek_v2", "deepseek_v3", "minimax_m3")
"""Values of ``expert_parallel.preset_model`` that dsengine applies."""
