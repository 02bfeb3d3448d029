"""AutoTP."""

from typing import Annotated, Any, Literal

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import Integer, NotInJson, OrAbsent


class Tp(Block, since="0.16.4", closed="0.16.4"):
    """Nested group settings."""

    tp_size: Integer = key(1, "Must be 1 or equal to autotp_size.")
    tp_grain_size: Integer = key(1, "Split granularity.")
    mpu: Any = key(None, "Python object; cannot appear in JSON.")
    tp_group: Any = key(None, "Process group object; cannot appear in JSON.")


class LayerSpecs(Block, since="0.18.6"):
    """Rules tried in order; the first match wins."""

    patterns: list[str] = key([], "Regular expressions over parameter names.")
    partition_type: Literal["column", "row", "skip"] = key(
        "column", "Which way the layer is split."
    )
    shape: list[Any] | None = key(
        None, "Logical shape before splitting; -1 infers and one nested list gives unequal parts."
    )
    partition_dim: Integer | None = key(
        None, "Axis to split; 0 for column and 1 for row when absent."
    )
    model_types: list[str] | None = key(None, "Limits the rule to these model types.")
    gather_output: bool = key(
        False, "Gathers a column layer's output on every rank.", since="0.19.4"
    )
    grad_allreduce: bool = key(
        False, "For skip rules: sums the gradient over the tensor-parallel group.", since="0.19.6"
    )


class PartitionConfig(Block, since="0.18.6"):
    """Custom layer partitioning rules; inner keys are checked only when the model is split."""

    tp_size: Integer = key(1, "Overwritten by autotp_size.")
    layer_specs: list[LayerSpecs] = key([], "Rules tried in order; the first match wins.")
    embedding_partition_dim: Integer = key(1, "Axis along which embeddings are split.")
    lm_head_patterns: list[str] = key(["lm_head", "embed_out"], "Names of output heads.")
    use_default_specs: bool = key(True, "Merges these rules with the preset's.")
    strict_mode: bool = key(False, "Fails on linear layers without a rule.")


class TensorParallel(Block, since="0.16.4", closed="0.16.4"):
    """AutoTP tensor parallelism for training."""

    dtype: Annotated[str, NotInJson("torch.dtype")] = key(
        "torch.float16",
        "torch dtype object; a JSON string can never satisfy it, so JSON configs must leave it out.",
    )
    autotp_size: Integer = key(0, "Tensor-parallel degree; 0 and 1 are off, no bound is checked.")
    tp_overlap_comm: bool = key(False, "Overlaps the all-reduce with compute.", since="0.16.6")
    vocab_parallel_lm_head: bool | None = key(
        None,
        "Shards the output head over the vocabulary: true, false, or null to follow the model.",
        since="0.19.8",
    )
    vocab_parallel_ce_backend: Literal["torch", "liger"] = key(
        "torch", "Cross-entropy kernel for a vocabulary-parallel head.", since="0.19.8"
    )
    tp: OrAbsent[Tp] = key(None, "Nested group settings.", spelled=("tp", "tensor_parallel"))
    injection_policy_tuple: list[Any] | None = key(None, "Internal.")
    partition_config: PartitionConfig | None = key(
        None,
        "Custom layer partitioning rules; inner keys are checked only when the model is split.",
        since="0.18.6",
    )
    preset_model: (
        Literal["llama", "bloom", "chatglm", "mixtral", "deepseek_v2", "qwen2", "phi3"] | None
    ) = key(
        None,
        "Built-in rules for a known architecture; checked only when the model is split.",
        since="0.18.6",
    )
    keep_module_on_host: bool = key(False, "Leaves weights on the host while splitting.")
    kernel_inject: bool = key(
        False,
        "Inference kernel injection flag that the parser needs.",
        spelled=("kernel_inject", "replace_with_kernel_inject"),
    )
