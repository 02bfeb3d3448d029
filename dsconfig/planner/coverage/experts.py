"""Coverage of ``expert_parallel``: dsengine divides a model's own experts and keeps its router."""

from dsconfig.planner.coverage.rules import NULL, Condition, Rule, equals, honoured, inert, refused
from dsconfig.runtimes.effective import Effective
from dsconfig.source.pointer import lookup

SWITCHED = ("expert_parallel",)
PRESETS = ("mixtral", "qwen3_moe", "qwen3_5_moe", "deepseek_v2", "deepseek_v3", "minimax_m3")
"""Values of ``preset_model`` that dsengine applies."""


def _is_undivided(value: object, config: Effective) -> bool:
    return lookup(config.config, "/expert_parallel/autoep_size", 1) == 1


_UNDIVIDED = Condition("while autoep_size is 1", _is_undivided)


def _when_divided(rule: Rule) -> Rule:
    return inert("expert-parallel degree 1", _UNDIVIDED) + rule


_PRESET = Condition(f"if {', '.join(PRESETS)}", lambda value, config: value in PRESETS)
_AS_MODEL = Condition('if "auto" or null', lambda value, config: value in ("auto", None))
_ROUTER = _when_divided(
    inert("the model's router decides", _AS_MODEL)
    + honoured("compared with the config of the model, whose router is used")
)
_OWN_CODE = _when_divided(
    inert("the model computes its experts; select another experts_implementation in its config")
)
_DEEPEP = _when_divided(inert("read only by DeepEP"))

FAMILIES: dict[str, Rule] = {
    "expert_parallel": _when_divided(inert("router and experts are the model's own")),
}
RULES: dict[str, Rule] = {
    "expert_parallel.enabled": honoured("experts are divided over autoep_size ranks"),
    "expert_parallel.autoep_size": _when_divided(
        honoured("so many ranks share the experts that a pattern, or the model's plan, names")
    ),
    "expert_parallel.preset_model": _when_divided(
        inert("the model's plan names the experts", NULL)
        + honoured("layers that the preset names", _PRESET)
        + refused("this preset is unknown; write moe_layer_pattern, or use the model's own plan")
    ),
    "expert_parallel.moe_layer_pattern": _when_divided(
        inert("the model's plan names the experts", NULL)
        + honoured("layers whose full name matches have the experts")
    ),
    "expert_parallel.expert_pattern": _when_divided(
        inert('"experts"', NULL) + honoured("the attribute of a matching layer")
    ),
    "expert_parallel.top_k_attr": _when_divided(
        inert("the usual names", NULL) + honoured("the attribute that top_k is compared with")
    ),
    **dict.fromkeys(
        (
            f"expert_parallel.{name}"
            for name in (
                "top_k",
                "score_func",
                "route_norm",
                "routed_scaling_factor",
                "num_expert_groups",
                "num_limited_groups",
            )
        ),
        _ROUTER,
    ),
    "expert_parallel.route_scale": _when_divided(
        inert("the model's router decides", equals(1.0)) + _ROUTER[2:]
    ),
    "expert_parallel.score_apply": _when_divided(
        refused(
            "outputs are weighted, not inputs; write auto, and train models that weight inputs "
            "with DeepSpeed",
            equals("pre"),
        )
        + inert("outputs are weighted, on the rank of their token")
    ),
    "expert_parallel.expert_activation": _when_divided(
        inert("the model's own activation", NULL)
        + refused("experts keep the model's activation; remove the key")
    ),
    "expert_parallel.comm_backend": _when_divided(
        refused("DeepEP is not supported; write comm", equals("deepep"))
        + inert("all-to-all of torch.distributed")
    ),
    "expert_parallel.row_weighting_impl": _when_divided(
        refused("it requires DeepEP, which is not supported; remove the key", equals("fused"))
        + inert("outputs are weighted by torch's operators")
    ),
    "expert_parallel.comm_num_sm": _DEEPEP,
    "expert_parallel.comm_qp_margin": _DEEPEP,
    "expert_parallel.comm_max_tokens_per_rank": _DEEPEP,
    "expert_parallel.use_grouped_mm": _OWN_CODE,
    "expert_parallel.disable_triton_grouped_mm": _OWN_CODE,
    "expert_parallel.gate_up_impl": _OWN_CODE,
    "expert_parallel.combine_impl": _OWN_CODE,
    "expert_parallel.async_split_plan": _when_divided(
        inert("the sizes of a layer's parts are read once, before they are sent")
    ),
    "use_data_before_expert_parallelism": inert("off", equals(False))
    + refused("ranks that share experts are neighbors; remove the key"),
}
