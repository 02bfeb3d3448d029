"""AutoTP: tensor parallelism for training."""

from typing import Any, Literal

from dsconfig.schema.declare import Block, ReadAs, key
from dsconfig.schema.types import Integer, OrAbsent, TorchDtype


class TensorParallelGroup(Block, since="0.16.4", closed="0.16.4"):
    """Tensor-parallel process group."""

    tp_size: Integer = key(1, "Must be 1 or equal to autotp_size.")
    tp_grain_size: Integer = key(1, "Granularity of the split.")
    mpu: Any = key(None, "A Python object; cannot be set in a file.")
    tp_group: Any = key(None, "A process group; cannot be set in a file.")


class LayerSpec(Block, since="0.18.6"):
    """Partitioning rule for some layers."""

    patterns: list[str] = key([], "Regular expressions over parameter names.")
    partition_type: Literal["column", "row", "skip"] = key("column", "Partitioning type.")
    shape: list[Any] | None = key(
        None, "Logical shape before partitioning; -1: inferred, one nested list: uneven partitions."
    )
    partition_dim: Integer | None = key(
        None, "Dimension to partition; null: 0 for column, 1 for row."
    )
    model_types: list[str] | None = key(None, "Model types to which the rule applies.")
    gather_output: bool = key(
        False, "Gather the output of a column-parallel layer.", since="0.19.4"
    )
    grad_allreduce: bool = key(
        False, "All-reduce the gradient of a skipped layer over the group.", since="0.19.6"
    )


class PartitionConfig(Block, since="0.18.6"):
    """Partitioning rules, read when the model is partitioned."""

    tp_size: Integer = key(1, "Overwritten by autotp_size.")
    layer_specs: list[LayerSpec] = key([], "Rules in order; the first match applies.")
    embedding_partition_dim: Integer = key(1, "Dimension along which embeddings are partitioned.")
    lm_head_patterns: list[str] = key(["lm_head", "embed_out"], "Name patterns of output heads.")
    use_default_specs: bool = key(True, "Add the preset's rules.")
    strict_mode: bool = key(False, "Fail if a linear layer has no rule.")


class TensorParallel(Block, since="0.16.4", closed="0.16.4"):
    """AutoTP: partitions layers across ranks without changes to the model code."""

    dtype: TorchDtype = key("torch.float16", "A torch.dtype object; cannot be set in a file.")
    autotp_size: Integer = key(0, "Tensor-parallel degree; 0 and 1: disabled.")
    tp_overlap_comm: bool = key(False, "Overlap the all-reduce with computation.", since="0.16.6")
    vocab_parallel_lm_head: bool | None = key(
        None,
        "Partition the output head along the vocabulary; null: follow the model.",
        since="0.19.8",
    )
    vocab_parallel_ce_backend: Literal["torch", "liger"] = key(
        "torch", "Cross-entropy implementation for a partitioned head.", since="0.19.8"
    )
    tp: OrAbsent[TensorParallelGroup] = key(
        None, "Tensor-parallel process group.", spelled=("tp", "tensor_parallel")
    )
    injection_policy_tuple: list[Any] | None = key(None, "Set internally by DeepSpeed.")
    partition_config: PartitionConfig | None = key(None, "Partitioning rules.", since="0.18.6")
    preset_model: (
        Literal["llama", "bloom", "chatglm", "mixtral", "deepseek_v2", "qwen2", "phi3"] | None
    ) = key(None, "Built-in rules for an architecture.", since="0.18.6", read_as=ReadAs.STR)
    keep_module_on_host: bool = key(False, "Keep weights on the host during partitioning.")
    kernel_inject: bool = key(
        False,
        "Inference engine switch that DeepSpeed's parser expects.",
        spelled=("kernel_inject", "replace_with_kernel_inject"),
    )
