"""AutoTP: tensor parallelism for training."""

from typing import Any, Literal

from dsconfig.schema.declare import Block, ReadAs, key
from dsconfig.schema.types import Integer, OrAbsent, TorchDtype


class TensorParallelGroup(Block, since="0.16.4", closed="0.16.4"):
    """The process group."""

    tp_size: Integer = key(1, "Must be 1 or equal to autotp_size.")
    tp_grain_size: Integer = key(1, "Granularity of the split.")
    mpu: Any = key(None, "A Python object; no text can hold it.")
    tp_group: Any = key(None, "A process group; no text can hold it.")


class LayerSpec(Block, since="0.18.6"):
    """A rule that says how some layers are split."""

    patterns: list[str] = key([], "Regular expressions over parameter names.")
    partition_type: Literal["column", "row", "skip"] = key("column", "Way of splitting.")
    shape: list[Any] | None = key(
        None, "Logical shape before the split; -1 is inferred, one nested list splits unevenly."
    )
    partition_dim: Integer | None = key(None, "Axis to split; null is 0 for column, 1 for row.")
    model_types: list[str] | None = key(None, "Model types the rule is limited to.")
    gather_output: bool = key(False, "Gathers a column layer's output.", since="0.19.4")
    grad_allreduce: bool = key(
        False, "Sums the gradient of a skipped layer over the group.", since="0.19.6"
    )


class PartitionConfig(Block, since="0.18.6"):
    """Rules for splitting layers; looked at when the model is split."""

    tp_size: Integer = key(1, "Overwritten by autotp_size.")
    layer_specs: list[LayerSpec] = key([], "Rules tried in order; the first match wins.")
    embedding_partition_dim: Integer = key(1, "Axis along which embeddings are split.")
    lm_head_patterns: list[str] = key(["lm_head", "embed_out"], "Names of output heads.")
    use_default_specs: bool = key(True, "Adds the preset's rules to these.")
    strict_mode: bool = key(False, "Fails on a linear layer without a rule.")


class TensorParallel(Block, since="0.16.4", closed="0.16.4"):
    """AutoTP: splits layers over ranks without changing the model's code."""

    dtype: TorchDtype = key(
        "torch.float16", "A torch.dtype object; no text can hold it, so leave it out."
    )
    autotp_size: Integer = key(0, "Ranks that share a layer; 0 and 1 are off.")
    tp_overlap_comm: bool = key(False, "Overlaps its all-reduce with compute.", since="0.16.6")
    vocab_parallel_lm_head: bool | None = key(
        None,
        "Splits the output head over the vocabulary; null follows the model.",
        since="0.19.8",
    )
    vocab_parallel_ce_backend: Literal["torch", "liger"] = key(
        "torch", "Cross-entropy kernel for a split head.", since="0.19.8"
    )
    tp: OrAbsent[TensorParallelGroup] = key(
        None, "The process group.", spelled=("tp", "tensor_parallel")
    )
    injection_policy_tuple: list[Any] | None = key(None, "Set by DeepSpeed itself.")
    partition_config: PartitionConfig | None = key(
        None, "Rules for splitting layers.", since="0.18.6"
    )
    preset_model: (
        Literal["llama", "bloom", "chatglm", "mixtral", "deepseek_v2", "qwen2", "phi3"] | None
    ) = key(None, "Built-in rules for an architecture.", since="0.18.6", read_as=ReadAs.STR)
    keep_module_on_host: bool = key(False, "Leaves weights on the host while splitting.")
    kernel_inject: bool = key(
        False,
        "A switch of the inference engine that the parser needs.",
        spelled=("kernel_inject", "replace_with_kernel_inject"),
    )
