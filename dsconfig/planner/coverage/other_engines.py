"""Blocks that belong to engines of another kind: inert while off, refused when on."""

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


def _not_built(feature: str, instead: str) -> Rule:
    return refused(f"{feature} is not built; {instead}")


FAMILIES: dict[str, Rule] = {
    "hybrid_engine": _not_built("DeepSpeed-Chat's hybrid engine", "generate with the module"),
    "autotuning": inert("use `dsconfig tune`, which needs no runs"),
    "expert_parallel": _not_built("expert parallelism", "remove the block"),
    "weight_quantization": _not_built("quantised inference", "remove the block"),
    "data_efficiency": _not_built(
        "curriculum, dynamic batching and random-LTD", "pass your own data loader"
    ),
    "elasticity": inert("checkpoints load at any world size; the batch comes from the config"),
    "msamp": _not_built("MS-AMP", "remove the block"),
    "amp": _not_built("apex amp", "use bf16 or torch_autocast"),
    "compression_training": _not_built("compression", "remove the block"),
    "nebula": _not_built("Nebula", "use the engine's async save"),
    "tensor_parallel": inert("one tensor-parallel rank", AUTOTP_OFF)
    + _not_built("tensor parallelism", "use ZeRO stage 3"),
    "inference": inert("read only by inference engines"),
    "compile": inert("DeepCompile is off", DEEPCOMPILE_OFF)
    + _not_built("DeepCompile", "call engine.compile(), which uses torch.compile"),
    "pipeline": inert("read only by pipeline modules; a plain module has one stage"),
    "checkpoint.writer": _not_built("DeepSpeed's checkpoint writers", "use the async save"),
    "datastates_ckpt": _not_built("DataStates", "use the async save"),
    "zero_optimization.zenflow": _not_built("ZenFlow", "remove the block"),
    "zero_optimization.leaf_module": honoured(
        "names modules in which a rank may leave parameters unused: reduced as zeros", SHARDED
    )
    + inert("at stage 0 parameters that no rank has used are left alone"),
    "sparse_attention": _not_built("sparse attention", "remove the block"),
    "progressive_layer_drop": _not_built("progressive layer drop", "remove the block"),
    "curriculum_learning": _not_built("curriculum learning", "pass your own data loader"),
    "eigenvalue": _not_built("eigenvalue estimation", "remove the block"),
    "quantize_training": _not_built("quantised training", "remove the block"),
    "graph_harvesting": _not_built("CUDA graph harvesting", "remove the key"),
}

RULES: dict[str, Rule] = {
    "data_efficiency.seed": inert("the sampler's seed is 0, as in DeepSpeed's plain loader"),
    "data_efficiency.data_sampling.num_workers": inert(
        "read by DeepSpeed's curriculum only; two processes feed an accelerator, none a CPU"
    ),
    "data_efficiency.data_sampling.pin_memory": inert(
        "read by DeepSpeed's curriculum only; batches for an accelerator are pinned"
    ),
}
