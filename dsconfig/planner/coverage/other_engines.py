"""Coverage of features that dsengine does not implement: inert if off, else refused."""

from dsconfig.features.table import DEGREES, FEATURES
from dsconfig.planner.coverage.rules import (
    NULL,
    ON,
    SHARDED,
    Condition,
    Rule,
    honoured,
    inert,
    refused,
)
from dsconfig.runtimes.effective import Effective
from dsconfig.source.pointer import lookup

SWITCHED = (
    *("hybrid_engine", "autotuning", "weight_quantization", "data_efficiency", "elasticity"),
    *("msamp", "amp", "compression_training", "nebula"),
)


def _autotp_off(value: object, config: Effective) -> bool:
    size = lookup(config.config, "/tensor_parallel/autotp_size", 0)
    return isinstance(size, int) and size <= 1


AUTOTP_OFF = Condition("while autotp_size is 0 or 1", _autotp_off)
DEEPCOMPILE_OFF = Condition(
    "while deepcompile is off",
    lambda value, config: not lookup(config.config, "/compile/deepcompile", False),
)


def _when_split(rule: Rule) -> Rule:
    return inert("tensor-parallel degree 1", AUTOTP_OFF) + rule


_PARALLEL_PASSES = Condition(
    'if it has "autosp" or "autotp"',
    lambda value, config: isinstance(value, list) and ("autosp" in value or "autotp" in value),
)


def _while_on(block: str) -> dict[str, Rule]:
    """Return the rule of a nested block that is refused while its ``enabled`` key is on."""
    switch, name = f"/{block.replace('.', '/')}/enabled", block.rpartition(".")[2]
    off = Condition(
        f"while {name}.enabled is off",
        lambda value, config: not lookup(config.config, switch, False),
    )
    return {block: inert("its block is disabled", off) + refused(FEATURES[name])}


_REFUSED = (
    *("weight_quantization", "msamp", "amp", "compression_training", "nebula", "datastates_ckpt"),
    *("sparse_attention", "progressive_layer_drop", "curriculum_learning", "eigenvalue"),
    *("quantize_training", "graph_harvesting"),
)
FAMILIES: dict[str, Rule] = {
    **{block: refused(FEATURES[block]) for block in _REFUSED},
    "hybrid_engine": inert("engine.generate() needs no switch; it gathers sharded parameters once"),
    "autotuning": inert("use `dsconfig tune`, which estimates instead of running"),
    "data_efficiency": inert("curriculum, dynamic batching and random-LTD have their own switches"),
    **_while_on("data_efficiency.data_sampling.curriculum_learning"),
    **_while_on("data_efficiency.data_sampling.dynamic_batching"),
    **_while_on("data_efficiency.data_routing.random_ltd"),
    "elasticity": inert("checkpoints load at any world size; the batch comes from the config"),
    "tensor_parallel": _when_split(inert("read by DeepSpeed's own layers only")),
    "tensor_parallel.partition_config": _when_split(
        honoured("the first rule that matches a linear layer's weight splits it")
    ),
    "inference": inert("read only for inference"),
    "compile": inert("DeepCompile is off", DEEPCOMPILE_OFF)
    + inert("engine.compile() uses torch.compile, without DeepCompile's passes"),
    "checkpoint.writer": inert("all ranks write their shards in parallel, with dsengine's writer"),
    "zero_optimization.zenflow": refused(FEATURES["zenflow"]),
    "zero_optimization.leaf_module": honoured(
        "modules whose unused parameters get zero gradients", SHARDED
    )
    + inert("stage 0 skips parameters that no rank used"),
}

_GROUPS = refused("process groups are dsengine's own; remove the key")
_SPLIT: dict[str, Rule] = {
    "autotp_size": honoured(DEGREES["tensor"].reason),
    "tp.tp_size": honoured("equal to autotp_size, or 1"),
    **dict.fromkeys(("tp.tp_group", "tp.mpu"), inert("not set", NULL) + _GROUPS),
    "tp.tp_grain_size": inert("layers are split evenly"),
    "dtype": inert("bf16, fp16 and the model decide the dtype"),
    "tp_overlap_comm": inert(
        "the next layer needs the sum at once; backward overlaps nothing with it"
    ),
    "vocab_parallel_lm_head": honoured(
        "logits are a DTensor split along the vocabulary, and so is the loss", ON
    )
    + honoured("every rank has whole logits"),
    "vocab_parallel_ce_backend": inert(
        "torch's cross entropy computes the loss; Liger's kernel computes the same"
    ),
    "partition_config.tp_size": inert("overwritten by autotp_size"),
    "partition_config.embedding_partition_dim": inert("rules do not split embeddings"),
    "partition_config.lm_head_patterns": inert("a head is split by its rule"),
    "preset_model": honoured("the rules of the preset follow those of layer_specs"),
}
"""Keys of ``tensor_parallel``, read from degree 2 on."""
_PIPELINE: dict[str, Rule] = {
    "activation_checkpoint_interval": honoured("layers of a PipelineModule per checkpoint"),
    "use_reentrant": inert("checkpoints are never reentrant"),
    **dict.fromkeys(
        ("pipe_partitioned", "grad_partitioned"),
        inert("stages exchange full tensors: their layers are not split"),
    ),
    **dict.fromkeys(
        ("stages", "partition", "seed_layers"),
        inert("an argument of PipelineModule, as in DeepSpeed"),
    ),
}
RULES: dict[str, Rule] = {
    **{f"pipeline.{name}": rule for name, rule in _PIPELINE.items()},
    "compile.passes": inert("DeepCompile is off", DEEPCOMPILE_OFF)
    + refused(FEATURES["deepcompile_parallel_passes"], _PARALLEL_PASSES)
    + inert("engine.compile() uses torch.compile, without DeepCompile's passes"),
    "hybrid_engine.max_out_tokens": inert("the KV cache of the model's generate() grows as needed"),
    "hybrid_engine.inference_tp_size": inert(
        "every rank generates with all parameters, gathered at once or block by block"
    ),
    "hybrid_engine.release_inference_cache": inert(
        "the KV cache is freed at the end of each generate()"
    ),
    "hybrid_engine.pin_parameters": inert("there are no inference kernels with own parameters"),
    "hybrid_engine.tp_gather_partition_size": inert("parameters are gathered unit by unit"),
    "hybrid_engine.enable_cuda_graph": inert("the model's generate() runs without CUDA graphs"),
    "data_efficiency.seed": inert("the sampler's seed is 0, as in DeepSpeed's default data loader"),
    "data_efficiency.data_sampling.num_epochs": inert("read only by DeepSpeed's curriculum"),
    "data_efficiency.data_sampling.num_workers": inert(
        "read only by DeepSpeed's curriculum; dsengine uses two workers with a GPU, none on CPU"
    ),
    "data_efficiency.data_sampling.pin_memory": inert(
        "read only by DeepSpeed's curriculum; dsengine pins batches for a GPU"
    ),
} | {f"tensor_parallel.{name}": _when_split(rule) for name, rule in _SPLIT.items()}
