"""Coverage of features that dsengine does not implement: inert if off, else refused."""

from dsconfig.planner.coverage.rules import SHARDED, Condition, Rule, honoured, inert, refused
from dsconfig.runtimes.effective import Effective
from dsconfig.source.pointer import lookup

SWITCHED = (
    "hybrid_engine",
    "autotuning",
    "expert_parallel",
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


def _unsupported(feature: str, instead: str) -> Rule:
    return refused(f"{feature} is not supported; {instead}")


FAMILIES: dict[str, Rule] = {
    "hybrid_engine": _unsupported(
        "DeepSpeed-Chat's hybrid engine", "generate with the module itself"
    ),
    "autotuning": inert("use `dsconfig tune`, which estimates instead of running"),
    "expert_parallel": _unsupported("expert parallelism", "remove the block"),
    "weight_quantization": _unsupported("quantized inference", "remove the block"),
    "data_efficiency": _unsupported(
        "data efficiency (curriculum, dynamic batching, random-LTD)", "pass your own data loader"
    ),
    "elasticity": inert("checkpoints load at any world size; the batch comes from the config"),
    "msamp": _unsupported("MS-AMP", "remove the block"),
    "amp": _unsupported("apex amp", "use bf16 or torch_autocast"),
    "compression_training": _unsupported("compression", "remove the block"),
    "nebula": _unsupported("Nebula", "use dsengine's asynchronous save"),
    "tensor_parallel": inert("tensor-parallel degree 1", AUTOTP_OFF)
    + _unsupported("tensor parallelism", "use ZeRO stage 3"),
    "inference": inert("read only for inference"),
    "compile": inert("DeepCompile is off", DEEPCOMPILE_OFF)
    + _unsupported("DeepCompile", "call engine.compile(), which uses torch.compile"),
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
    "data_efficiency.seed": inert("the sampler's seed is 0, as in DeepSpeed's default data loader"),
    "data_efficiency.data_sampling.num_workers": inert(
        "read only by DeepSpeed's curriculum; dsengine uses two workers with a GPU, none on CPU"
    ),
    "data_efficiency.data_sampling.pin_memory": inert(
        "read only by DeepSpeed's curriculum; dsengine pins batches for a GPU"
    ),
}
