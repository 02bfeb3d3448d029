"""AutoEP."""

from typing import Literal

from dsconfig.schema.declare import Block, key
from dsconfig.schema.types import AtLeastOne, Integer, Natural, Number, OrNativeAuto


class ExpertParallel(Block, since="0.19.2"):
    """AutoEP expert parallelism; unknown keys are ignored and values are checked only when enabled and the engine starts."""

    enabled: bool = key(False, "Turns AutoEP on.")
    autoep_size: AtLeastOne = key(
        1,
        "Expert-parallel degree; must be positive and divide the stage's world size and the expert count.",
    )
    expert_tensor_parallel_size: AtLeastOne = key(
        1, "Reserved: anything but 1 raises.", since="0.19.3"
    )
    validate_folding_routing: bool = key(
        False,
        "Extra routing checks with AutoTP; checked to be boolean even when disabled.",
        since="0.19.3",
    )
    async_split_plan: bool = key(
        False, "Plans token splits asynchronously; not with AutoTP.", since="0.19.8"
    )
    preset_model: str | None = key(None, "Built-in model description.")
    moe_layer_pattern: str | None = key(None, "Regular expression that finds the MoE blocks.")
    expert_pattern: str | None = key(None, "Child attribute that holds the experts; no dots.")
    router_pattern: str | None = key(None, "Child attribute that holds the router; no dots.")
    use_grouped_mm: bool = key(True, "Uses grouped matrix multiplication.")
    disable_triton_grouped_mm: bool = key(False, "Avoids the Triton version of it.", since="0.19.4")
    route_norm: bool | None = key(None, "Normalises routing weights; null follows the preset.")
    route_scale: Number = key(1.0, "Multiplier on routing weights.")
    score_apply: Literal["auto", "pre", "post"] = key(
        "auto", "Whether scores apply before or after the experts."
    )
    combine_impl: Literal["auto", "weighted_sum", "fused_weighted_sum", "legacy_bmm"] = key(
        "auto", "How expert outputs are combined."
    )
    row_weighting_impl: Literal["auto", "eager", "fused"] = key(
        "auto", "Row weighting kernel; fused needs the deepep backend.", since="0.19.8"
    )
    gate_up_impl: Literal["separate", "fused"] = key(
        "separate", "Runs gate and up projections separately or together.", since="0.19.8"
    )
    comm_backend: Literal["comm", "deepep"] = key("comm", "Token exchange backend.", since="0.19.7")
    comm_num_sm: AtLeastOne = key(12, "Streaming multiprocessors given to DeepEP.", since="0.19.7")
    comm_qp_margin: Natural = key(4, "Spare queue pairs for DeepEP.", since="0.19.7")
    comm_max_tokens_per_rank: Natural = key(
        0,
        "Most tokens one rank routes; must be positive with deepep.",
        unit="tokens",
        since="0.19.7",
    )
    num_expert_groups: AtLeastOne | None = key(None, "Groups for group-limited routing.")
    num_limited_groups: AtLeastOne | None = key(
        None, "Groups each token may use; not more than num_expert_groups."
    )
    score_func: Literal["auto", "softmax", "sigmoid"] = key("auto", "Router score function.")
    top_k: OrNativeAuto[Integer] = key("auto", "Experts per token.")
    load_balance_coeff: None = key(
        None, "Only null is accepted; any number raises at parse.", checked="0.19.2"
    )
    routed_scaling_factor: OrNativeAuto[Number] = key(
        "auto", "Scale from the model config, or a number."
    )
    expert_w1: str | None = key(None, "Attribute of the first expert weight.")
    expert_w2: str | None = key(None, "Attribute of the second expert weight.")
    expert_w3: str | None = key(
        None, "Attribute of the third expert weight; an explicit null means fused gate and up."
    )
    num_experts_attr: str | None = key(None, "Model-config attribute with the expert count.")
    top_k_attr: str | None = key(None, "Model-config attribute with the experts per token.")
    has_shared_experts: bool | None = key(None, "Whether shared experts exist.")
    shared_experts_pattern: str | None = key(None, "Child attribute with the shared experts.")
    shared_experts_gate_pattern: str | None = key(None, "Child attribute with their gate.")
    expert_activation: str | None = key(None, "Expert MLP activation name.", since="0.19.8")
