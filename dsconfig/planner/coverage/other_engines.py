"""Coverage of features that dsengine does not implement: inert if off, else refused."""

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
    "hybrid_engine",
    "autotuning",
    "weight_quantization",
    "data_efficiency",
    "elasticity",
    "msamp",
    "amp",
    "compression_training",
    "nebula",
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


def _unsupported(feature: str, instead: str) -> Rule:
    return refused(f"{feature} is not supported; {instead}")


def _while_on(block: str, feature: str) -> dict[str, Rule]:
    """Return the rule of a nested block that is refused while its ``enabled`` key is on."""
    switch = f"/{block.replace('.', '/')}/enabled"
    off = Condition(
        f"while {block.rpartition('.')[2]}.enabled is off",
        lambda value, config: not lookup(config.config, switch, False),
    )
    rule = _unsupported(feature, "pass your own data loader, and remove the block")
    return {block: inert(f"{feature} is off", off) + rule}


FAMILIES: dict[str, Rule] = {
    "hybrid_engine": inert("engine.generate() needs no switch; it gathers sharded parameters once"),
    "autotuning": inert("use `dsconfig tune`, which estimates instead of running"),
    "weight_quantization": _unsupported("quantized inference", "remove the block"),
    "data_efficiency": inert("curriculum, dynamic batching and random-LTD have their own switches"),
    **_while_on("data_efficiency.data_sampling.curriculum_learning", "the curriculum sampler"),
    **_while_on("data_efficiency.data_sampling.dynamic_batching", "dynamic batching"),
    **_while_on("data_efficiency.data_routing.random_ltd", "random-LTD"),
    "elasticity": inert("checkpoints load at any world size; the batch comes from the config"),
    "msamp": _unsupported("MS-AMP", "remove the block"),
    "amp": _unsupported("apex amp", "use bf16 or torch_autocast"),
    "compression_training": _unsupported("compression", "remove the block"),
    "nebula": _unsupported("Nebula", "use dsengine's asynchronous save"),
    "tensor_parallel": _when_split(inert("read by DeepSpeed's own layers only")),
    "tensor_parallel.partition_config": _when_split(
        honoured("the first rule that matches a linear layer's weight splits it")
    ),
    "inference": inert("read only for inference"),
    "compile": inert("DeepCompile is off", DEEPCOMPILE_OFF)
    + inert("engine.compile() uses torch.compile, without DeepCompile's passes"),
    "pipeline": inert("read only with a PipelineModule; other modules have one stage"),
    "checkpoint.writer": _unsupported(
        "DeepSpeed's fast checkpoint engine", "use dsengine's asynchronous save"
    ),
    "datastates_ckpt": _unsupported("DataStates", "use dsengine's asynchronous save"),
    "zero_optimization.zenflow": _unsupported("ZenFlow", "remove the block"),
    "zero_optimization.leaf_module": honoured(
        "modules whose unused parameters get zero gradients", SHARDED
    )
    + inert("stage 0 skips parameters that no rank used"),
    "sparse_attention": _unsupported("sparse attention", "remove the block"),
    "progressive_layer_drop": _unsupported("progressive layer drop", "remove the block"),
    "curriculum_learning": _unsupported("curriculum learning", "pass your own data loader"),
    "eigenvalue": _unsupported("eigenvalue estimation", "remove the block"),
    "quantize_training": _unsupported("quantized training", "remove the block"),
    "graph_harvesting": _unsupported("CUDA graph harvesting", "remove the key"),
}

RULES: dict[str, Rule] = {
    "compile.passes": inert("DeepCompile is off", DEEPCOMPILE_OFF)
    + refused(
        "DeepCompile's parallel passes are not supported; set sequence_parallel_size or "
        "tensor_parallel.autotp_size",
        _PARALLEL_PASSES,
    )
    + inert("engine.compile() uses torch.compile, without DeepCompile's passes"),
    "tensor_parallel.autotp_size": _when_split(
        honoured("so many ranks share the layers that the rules, or the model's plan, split")
    ),
    "tensor_parallel.tp.tp_size": _when_split(honoured("equal to autotp_size, or 1")),
    "tensor_parallel.tp.tp_group": _when_split(
        inert("not set", NULL) + refused("process groups are dsengine's own; remove the key")
    ),
    "tensor_parallel.tp.mpu": _when_split(
        inert("not set", NULL) + refused("process groups are dsengine's own; remove the key")
    ),
    "tensor_parallel.tp.tp_grain_size": _when_split(inert("layers are split evenly")),
    "tensor_parallel.dtype": _when_split(inert("bf16, fp16 and the model decide the dtype")),
    "tensor_parallel.tp_overlap_comm": _when_split(
        inert("the next layer needs the sum at once; backward overlaps nothing with it")
    ),
    "tensor_parallel.vocab_parallel_lm_head": _when_split(
        honoured("logits are a DTensor split along the vocabulary, and so is the loss", ON)
        + honoured("every rank has whole logits")
    ),
    "tensor_parallel.vocab_parallel_ce_backend": _when_split(
        inert("torch's cross entropy computes the loss; Liger's kernel computes the same")
    ),
    "tensor_parallel.partition_config.tp_size": _when_split(inert("overwritten by autotp_size")),
    "tensor_parallel.partition_config.embedding_partition_dim": _when_split(
        inert("rules do not split embeddings")
    ),
    "tensor_parallel.partition_config.lm_head_patterns": _when_split(
        inert("a head is split by its rule")
    ),
    "tensor_parallel.preset_model": _when_split(
        honoured("the rules of the preset follow those of layer_specs")
    ),
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
}
