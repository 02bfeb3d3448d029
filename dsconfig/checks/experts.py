"""Rules for mixtures of experts: expert_parallel, and experts at ZeRO stage 3."""

import math
from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import MODEL, refusal, rule
from dsconfig.checks.rule import AT_INIT, Finding, fills_auto, reaches_deepspeed
from dsconfig.checks.values import VALUE_KINDS
from dsconfig.report import Effect
from dsconfig.runtimes.accelerate import release_used
from dsconfig.schema import paths
from dsconfig.schema.version import Version
from dsconfig.source import plugin_settings
from dsconfig.source.pointer import split

EP, COMPILE = paths.ROOT / "expert_parallel", paths.ROOT / "compile"
QUANTIZED, HPZ = "zero_quantized_gradients", "zero_hpz_partition_size"


@refusal("DSC465", triggers="expert_parallel", stops="engine ValueError")
def expert_parallel_values(config: Context) -> Iterator[Finding]:
    """Invalid value or combination in `expert_parallel`

    bad: {"train_batch_size": 8, "expert_parallel": {"enabled": true, "num_expert_groups": 2,
        "num_limited_groups": 4}}
    good: {"train_batch_size": 8, "expert_parallel": {"enabled": true, "num_expert_groups": 4,
        "num_limited_groups": 2}}
    """
    if not config.switch("expert_parallel", "enabled"):
        return
    tp = config.in_force(paths.TENSOR_PARALLEL, "autotp_size")
    faults = _invalid(config, tp)
    reported = [name for name, wrong, _ in faults if wrong]
    for name, wrong, problem in (*faults, *_wrong_values(config, reported)):
        if wrong:
            yield Finding(
                path=EP / name,
                message=f"expert_parallel.{name} {problem}: {AT_INIT}",
                help="fix it, or delete it to use the default",
            )
    yield from _with_others(config, tp)
    world, size = config.facts.world_size, config.get(*EP, "autoep_size")
    if world is not None and isinstance(size, int) and size > 1 and world % size:
        yield Finding(
            path=EP / "autoep_size",
            message=f"autoep_size {size} does not divide {world} ranks: {AT_INIT}",
            help="set it to a divisor of the number of ranks",
        )


def _invalid(config: Context, tp: int) -> tuple[tuple[str, bool, str], ...]:
    """Return key, whether it is invalid, and the problem, for sizes and combinations."""
    block = config.block("expert_parallel")
    size = block.get("autoep_size", 1)
    comm = block.get("comm_backend", "comm")
    groups = config.number("expert_parallel", "num_expert_groups") or math.inf
    limited = config.number("expert_parallel", "num_limited_groups") or 0
    fused_rows = block.get("row_weighting_impl") == "fused"
    fused_sum = block.get("combine_impl") == "fused_weighted_sum"
    return (
        ("autoep_size", not isinstance(size, int) or size < 1, "must be 1 or more"),
        (
            "expert_tensor_parallel_size",
            block.get("expert_tensor_parallel_size", 1) != 1,
            "must be 1, the only supported value",
        ),
        ("num_limited_groups", limited > groups, "must not exceed num_expert_groups"),
        (
            "comm_max_tokens_per_rank",
            comm == "deepep" and not block.get("comm_max_tokens_per_rank"),
            "must be positive with comm_backend deepep",
        ),
        (
            "row_weighting_impl",
            fused_rows and (comm != "deepep" or size == 1),
            "fused requires comm_backend deepep and autoep_size above 1",
        ),
        (
            "gate_up_impl",
            block.get("gate_up_impl") == "fused" and not block.get("use_grouped_mm", True),
            "fused requires use_grouped_mm",
        ),
        (
            "combine_impl",
            fused_sum and (tp > 1 or (comm == "deepep" and size != 1)),
            "fused_weighted_sum does not support tensor parallelism or deepep",
        ),
        ("autoep_size", tp > 1 and size == 1, "must be above 1 if autotp_size is set"),
        (
            "async_split_plan",
            bool(block.get("async_split_plan")) and tp > 1 and size != 1,
            "does not support tensor parallelism",
        ),
    )


def _wrong_values(config: Context, reported: list[str]) -> Iterator[tuple[str, bool, str]]:
    """Yield values of a wrong type or outside the known choices."""
    for error in config.schema_errors:
        path = split(error.pointer)
        is_set = error.value is not None
        if path[:1] == EP and len(path) == 2 and error.kind in VALUE_KINDS and is_set:
            yield path[1], path[1] not in reported, f"must be {error.expected}"


def _with_others(config: Context, tp: int) -> Iterator[Finding]:
    """Yield features that expert parallelism does not support."""
    offloaded = "none" not in (config.offload("offload_param"), config.offload("offload_optimizer"))
    stage3 = config.stage == 3
    faults = (
        (COMPILE / "deepcompile", tp > 1 and config.is_on(COMPILE, "deepcompile")),
        (paths.OFFLOAD_OPTIMIZER, tp > 1 and offloaded),
        (paths.ZERO / QUANTIZED, stage3 and config.in_force(paths.ZERO, QUANTIZED)),
        (paths.ZERO / HPZ, stage3 and config.in_force(paths.ZERO, HPZ) > 1),
        (paths.SEQUENCE_PARALLEL, stage3 and (config.number("sequence_parallel_size") or 1) > 1),
    )
    for path, wrong in faults:
        if wrong:
            yield Finding(
                path=path,
                message=f"expert_parallel does not support {path} here: {AT_INIT}",
                help="disable one of the two",
            )


LEAVES_KNOWN = ("mixtral", "qwen2_moe", "qwen3_moe")
"""Families whose expert blocks are leaf modules by default, since 0.18.0."""


@rule("DSC468", Effect.NOTE, triggers=MODEL, applies_to=reaches_deepspeed)
def moe_at_stage_3(config: Context) -> Iterator[Finding]:
    """Mixture of experts at ZeRO stage 3 without leaf modules

    If each expert is gathered separately, ranks that run different experts gather different weights
    and deadlock. `leaf_module` (since 0.18.0; earlier, `set_z3_leaf_modules` in the script) makes
    an expert block one unit. Three model families are leaf modules by default, as are experts that
    a single module computes.

    with: model="mixtral-8x7b", version="0.17.6"
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    good: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
    """
    model = config.facts.model
    if config.stage != 3 or model is None or model.architecture is None:
        return
    known = config.since("0.18.0") and model.architecture.family in LEAVES_KNOWN
    launched = plugin_settings.block_of(config.facts.launch).get(MOE_LAYERS)
    named = config.has(*paths.ZERO, "leaf_module") or (launched and _reads_moe_layers(config))
    if (model.architecture.experts or 0) > 1 and not known and not named:
        yield Finding(
            path=paths.ZERO,
            message=f"{model.name} is a mixture of experts: at ZeRO stage 3, ranks that use "
            "different experts deadlock unless each expert block is a leaf module",
            help=_to_name_leaves(config),
            on_key=True,
        )


MOE_LAYERS = "deepspeed_moe_layer_cls_names"
READS_MOE = Version(0, 30, 0)
"""Setting of accelerate for leaf modules, and its first release that reads it."""


def _reads_moe_layers(config: Context) -> bool:
    return any(map(fills_auto, config.runtimes)) and release_used(config.facts) >= READS_MOE


def _to_name_leaves(config: Context) -> str:
    """Return how leaf modules are set in this release."""
    if config.facts.launch and _reads_moe_layers(config):
        return f"add {MOE_LAYERS}: <class of the expert block> to the accelerate config"
    if config.since("0.18.0"):
        return 'add "leaf_module": {"classes": ["<class of the expert block>"]}'
    if config.since("0.13.0"):
        return "call deepspeed.utils.set_z3_leaf_modules with the expert block in the script"
    return "use DeepSpeed 0.13.0 or later, and set_z3_leaf_modules in the script, or stage 2"


@rule("DSC469", Effect.INERT, triggers=MODEL)
def leaf_module_matches_nothing(config: Context) -> Iterator[Finding]:
    """`leaf_module` matches no module of the model

    The model is set by `--model`.

    with: model="gpt2"
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "leaf_module":
        {"names": ["no.such.module"]}}}
    good: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    """
    model = config.facts.model
    block = paths.ZERO / "leaf_module"
    if model is None or model.root is None or config.stage != 3 or not config.has(*block):
        return
    names = tuple(module.name for module in model.root.walk())
    for key in ("names", "name_suffixes"):
        for index, name in enumerate(config.items(*block, key)):
            candidates = [each for each in names if each == name or key != "names"]
            if not any(each.endswith(str(name)) for each in candidates):
                yield Finding(
                    path=block / key / str(index),
                    message=f'{model.name} has no module "{name}": the entry has no effect',
                    help="write a name from model.named_modules()",
                )
