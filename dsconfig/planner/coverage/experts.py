"""Coverage of ``expert_parallel``: dsengine divides a model's own experts and keeps its router."""

from dsconfig.features.table import DEGREES, EXPERT_PRESETS, FEATURES
from dsconfig.planner.coverage.rules import NULL, Condition, Rule, equals, honoured, inert, refused
from dsconfig.runtimes.effective import Effective
from dsconfig.source.pointer import lookup

SWITCHED = ("expert_parallel",)


def _is_undivided(value: object, config: Effective) -> bool:
    return lookup(config.config, "/expert_parallel/autoep_size", 1) == 1


_UNDIVIDED = Condition("while autoep_size is 1", _is_undivided)


def _when_divided(rule: Rule) -> Rule:
    return inert("expert-parallel degree 1", _UNDIVIDED) + rule


_PRESET = Condition(
    f"if {', '.join(EXPERT_PRESETS)}", lambda value, config: value in EXPERT_PRESETS
)
_AS_MODEL = Condition('if "auto" or null', lambda value, config: value in ("auto", None))
_COMPARED = honoured("compared with the config of the model, whose router is used")
_ROUTER = inert("the model's router decides", _AS_MODEL) + _COMPARED
_OWN_CODE = inert(
    "the model computes its experts; select another experts_implementation in its config"
)
_DEEPEP = inert("read only by DeepEP")

FAMILIES: dict[str, Rule] = {
    "expert_parallel": _when_divided(inert("router and experts are the model's own")),
}
_DIVIDED: dict[str, Rule] = {
    "autoep_size": honoured(DEGREES["expert"].reason),
    "preset_model": inert("the model's plan names the experts", NULL)
    + honoured("layers that the preset names", _PRESET)
    + refused(FEATURES["expert_presets"]),
    "moe_layer_pattern": inert("the model's plan names the experts", NULL)
    + honoured("layers whose full name matches have the experts"),
    "expert_pattern": inert('"experts"', NULL) + honoured("the attribute of a matching layer"),
    "top_k_attr": inert("the usual names", NULL)
    + honoured("the attribute that top_k is compared with"),
    **dict.fromkeys(("top_k", "score_func", "route_norm"), _ROUTER),
    **dict.fromkeys(("routed_scaling_factor", "num_expert_groups", "num_limited_groups"), _ROUTER),
    "route_scale": inert("the model's router decides", equals(1.0)) + _COMPARED,
    "score_apply": refused(
        "outputs are weighted, not inputs; write auto, and train models that weight inputs "
        "with DeepSpeed",
        equals("pre"),
    )
    + inert("outputs are weighted, on the rank of their token"),
    "expert_activation": inert("the model's own activation", NULL)
    + refused("experts keep the model's activation; remove the key"),
    "comm_backend": refused(FEATURES["deepep"], equals("deepep"))
    + inert("all-to-all of torch.distributed"),
    "row_weighting_impl": refused(FEATURES["deepep_weighting"], equals("fused"))
    + inert("outputs are weighted by torch's operators"),
    **dict.fromkeys(("comm_num_sm", "comm_qp_margin", "comm_max_tokens_per_rank"), _DEEPEP),
    **dict.fromkeys(("use_grouped_mm", "disable_triton_grouped_mm"), _OWN_CODE),
    **dict.fromkeys(("gate_up_impl", "combine_impl"), _OWN_CODE),
    "async_split_plan": inert("the sizes of a layer's parts are read once, before they are sent"),
}
"""Keys of ``expert_parallel``, read from degree 2 on."""
RULES: dict[str, Rule] = {
    "expert_parallel.enabled": honoured("experts are divided over autoep_size ranks"),
    "use_data_before_expert_parallelism": inert("off", equals(False))
    + refused("ranks that share experts are neighbors; remove the key"),
} | {f"expert_parallel.{name}": _when_divided(rule) for name, rule in _DIVIDED.items()}
